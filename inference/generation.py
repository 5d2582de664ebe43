"""Words of generation that every process shares: what was asked for, how it ended, what it cost.

Plain msgspec structs, so that they travel on the bus, in Celery tasks and in JSON columns alike.
They know nothing of tensors, of HTTP or of storage.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a choice ended, as the client reads it in `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    EXPIRED = "expired"


class AbortCause(StrEnum):
    """What made an abort happen."""

    API = "api"
    OPERATOR = "operator"
    CLIENT_DISCONNECTED = "client_disconnected"
    DEADLINE = "deadline"
    SLOW_CONSUMER = "slow_consumer"
    PAUSE = "pause"
    SHUTDOWN = "shutdown"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens, in the terms of the OpenAI and vLLM APIs.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 filter nothing. `max_tokens` None means
    as many as fit into the context. `logprobs` is the number of alternatives reported per
    token (None: report nothing; 0: the sampled token's own). `prompt_logprobs` likewise, for
    the prompt's tokens.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's natural-log probability, with its text."""

    token_id: int
    token: str
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The sampled token and the most likely alternatives at its place, most likely first."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request. `output_tokens` counts a final EOS or stop token too."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_prompt_tokens: int = 0
