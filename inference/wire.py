"""Every message between web, tasks and engine: one tagged struct each, msgpack on the wire.

`encode` and `decode` are the only way in and out. `decode` raises `WireError` for anything that
is not one of these messages, so that a reader can count it and go on. Field rules are checked
by msgspec while decoding; unknown fields are ignored, so that a newer peer may say more.

Who sends what, in order:

    client   Hello   ->  Welcome                      (a Refused instead closes the connection)
    client   Submit  ->  Accepted | Rejected, then Outputs until each choice has ended
    client   Abort   ->  Aborted                      (one outcome per target, after release)
    client   Attach  ->  Outputs from that token on
    client   Tokenize, Detokenize, Ask -> Tokens, Text, Status

What an engine tells the ledger is in `inference.events`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from inference.errors import WireError
from inference.generation import AbortCause, FinishReason, SamplingParams, TokenLogprobs, Usage

VERSION = 1

# A frame that claims to be longer is refused before it is read.
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of all messages."""


class Hello(Message, frozen=True, kw_only=True, tag="hello", omit_defaults=True):
    """The first frame of a connection. `client` names the web process or task for the logs."""

    version: int
    client: str
    secret: str = ""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome", omit_defaults=True):
    """The engine's answer. `epoch` is new at each start of the engine."""

    version: int
    replica: str
    epoch: str
    model: str
    max_model_len: int


class Refused(Message, frozen=True, kw_only=True, tag="refused", omit_defaults=True):
    """The connection is not accepted, and why; it closes after this."""

    reason: str


class RequestKey(msgspec.Struct, frozen=True, array_like=True):
    """One generation of one request: what an abort names and an event is about."""

    request_id: str
    generation: int


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", tag_field="t"):
    """Messages for the model's own chat template."""

    messages: list[dict[str, Any]]


class TextPrompt(msgspec.Struct, frozen=True, tag="text", tag_field="t"):
    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="ids", tag_field="t"):
    token_ids: list[int]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class Submit(Message, frozen=True, kw_only=True, tag="submit", omit_defaults=True):
    """Run a request: `n` choices of each prompt; choice index = prompt index * n + its number.

    `attached`: its outputs go to this connection, and the end of this connection aborts it.
    Deadlines are seconds from the engine's receipt of the message. `echo`: the prompt's text
    (and its logprobs if asked for) precedes the output.
    """

    key: RequestKey
    model: str
    prompts: list[Prompt]
    params: SamplingParams
    n: int = 1
    priority: int = 0
    attached: bool = True
    echo: bool = False
    deadline: float | None = None
    queue_deadline: float | None = None
    owner: str = ""


class Accepted(Message, frozen=True, kw_only=True, tag="accepted", omit_defaults=True):
    """The request is in the engine's queue. `prompt_tokens` per prompt."""

    key: RequestKey
    epoch: str
    prompt_tokens: list[int]


class Rejected(Message, frozen=True, kw_only=True, tag="rejected", omit_defaults=True):
    """The request was refused and never queued; `code` is that of an `inference.errors` class."""

    key: RequestKey
    epoch: str
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None


class AbortInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Why a choice was aborted, as the client reads it. `id`: of the abort, if there is one."""

    id: str | None = None
    cause: AbortCause
    reason: str | None = None


class ChoiceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one choice. The last one carries `finish_reason`.

    `text` may lag behind `token_ids` (an unfinished character, a possible stop string); the
    last output brings the rest. `prompt_text` and `prompt_logprobs` come once, for `echo`.
    """

    key: RequestKey
    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_text: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    abort: AbortInfo | None = None
    error_code: str | None = None
    error_message: str | None = None


class Outputs(Message, frozen=True, kw_only=True, tag="outputs", omit_defaults=True):
    """All that one step produced for one connection."""

    epoch: str
    step: int
    items: list[ChoiceOutput]


class Abort(Message, frozen=True, kw_only=True, tag="abort", omit_defaults=True):
    """Stop these requests, whatever phase each is in. Unknown ones are remembered for a while."""

    keys: list[RequestKey]
    info: AbortInfo


class ReleaseOutcome(StrEnum):
    """What the engine did about one target of an `Abort`."""

    RELEASED = "released"  # it was live, and holds no slot and no block any more
    ENDED = "ended"  # it had ended before
    UNKNOWN = "unknown"  # never seen here; remembered, so that a late Submit ends at once


class Release(msgspec.Struct, frozen=True, array_like=True):
    key: RequestKey
    outcome: ReleaseOutcome


class Aborted(Message, frozen=True, kw_only=True, tag="aborted", omit_defaults=True):
    """The answer to an `Abort`, sent after slots and blocks were released."""

    epoch: str
    releases: list[Release]


class Attach(Message, frozen=True, kw_only=True, tag="attach", omit_defaults=True):
    """Send what a request has produced from token `from_token` of each choice on, and follow it."""

    key: RequestKey
    from_token: int = 0


class Tokenize(Message, frozen=True, kw_only=True, tag="tokenize", omit_defaults=True):
    """`call` comes back in the answer, here and in the other questions."""

    call: int
    prompt: Prompt
    add_special_tokens: bool = True


class Tokens(Message, frozen=True, kw_only=True, tag="tokens", omit_defaults=True):
    call: int
    token_ids: list[int]
    max_model_len: int


class Detokenize(Message, frozen=True, kw_only=True, tag="detokenize", omit_defaults=True):
    call: int
    token_ids: list[int]


class Text(Message, frozen=True, kw_only=True, tag="text", omit_defaults=True):
    call: int
    text: str


class Ask(Message, frozen=True, kw_only=True, tag="ask", omit_defaults=True):
    """Ask for a `Status`. Answered between two steps: an answer means that the loop turns."""

    call: int


class Status(Message, frozen=True, kw_only=True, tag="status", omit_defaults=True):
    """The engine's load at one moment. Counts are sequences (choices), blocks and tokens."""

    call: int
    epoch: str
    replica: str
    model: str
    running: int
    waiting: int
    free_slots: int
    total_slots: int
    free_blocks: int
    total_blocks: int
    steps: int
    last_step_seconds: float
    uptime_seconds: float


class CallFailed(Message, frozen=True, kw_only=True, tag="call_failed", omit_defaults=True):
    """The question `call` has no answer; `code` as in `Rejected`."""

    call: int
    code: str
    message: str


ToEngine: TypeAlias = Hello | Submit | Abort | Attach | Tokenize | Detokenize | Ask
FromEngine: TypeAlias = (
    Welcome
    | Refused
    | Accepted
    | Rejected
    | Outputs
    | Aborted
    | Tokens
    | Text
    | Status
    | CallFailed
)
AnyMessage: TypeAlias = ToEngine | FromEngine

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    return _encoder.encode(message)


def decode(frame: bytes) -> AnyMessage:
    """One message. Raises `WireError` for bytes that are none."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError) as problem:
        raise WireError(f"not a message: {problem}") from problem
