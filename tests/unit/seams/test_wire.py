"""Messages survive the wire unchanged, and nothing else gets through it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import wire
from inference.errors import WireError
from inference.generation import (
    AbortCause,
    FinishReason,
    SamplingParams,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)

KEY = wire.RequestKey("req_1", 2)
INFO = wire.AbortInfo(id="abt_1", cause=AbortCause.OPERATOR, reason="too long")
LOGPROBS = [TokenLogprobs(TokenLogprob(7, "é", -0.5), (TokenLogprob(7, "é", -0.5),))]

MESSAGES: list[wire.AnyMessage] = [
    wire.Hello(version=wire.VERSION, client="web-1", secret="s"),
    wire.Welcome(version=1, replica="engine-0", epoch="e", model="m", max_model_len=2048),
    wire.Refused(reason="no"),
    wire.Submit(
        key=KEY,
        model="m",
        prompts=[
            wire.ChatPrompt([{"role": "user", "content": "hi"}]),
            wire.TextPrompt("hi"),
            wire.TokenPrompt([1, 2]),
        ],
        params=SamplingParams(max_tokens=3, logit_bias={5: -1.5}, stop=("a", "b"), seed=1),
        n=2,
        deadline=1.5,
    ),
    wire.Accepted(key=KEY, epoch="e", prompt_tokens=[3, 4]),
    wire.Rejected(key=KEY, epoch="e", code="queue_full", message="full", retry_after=1.0),
    wire.Outputs(
        epoch="e",
        step=9,
        items=[
            wire.ChoiceOutput(
                key=KEY,
                index=1,
                text="x",
                token_ids=[7],
                logprobs=LOGPROBS,
                finish_reason=FinishReason.ABORT,
                usage=Usage(prompt_tokens=3, output_tokens=1),
                abort=INFO,
            )
        ],
    ),
    wire.Abort(keys=[KEY], info=INFO),
    wire.Aborted(epoch="e", releases=[wire.Release(KEY, wire.ReleaseOutcome.UNKNOWN)]),
    wire.Attach(key=KEY, from_token=4),
    wire.Tokenize(call=1, prompt=wire.TextPrompt("x")),
    wire.Tokens(call=1, token_ids=[1], max_model_len=9),
    wire.Detokenize(call=1, token_ids=[1]),
    wire.Text(call=1, text="x"),
    wire.Ask(call=1),
    wire.CallFailed(call=1, code="invalid_request", message="no"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_it_carries_every_kind_of_message_unchanged(message: wire.AnyMessage) -> None:
    assert wire.decode(wire.encode(message)) == message


@given(st.binary(max_size=400))
def test_it_raises_only_wire_error_for_bytes_that_are_no_message(frame: bytes) -> None:
    try:
        wire.decode(frame)
    except WireError:
        return


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=5,
)


@given(
    st.sampled_from(["submit", "abort", "attach", "hello", "outputs", "nonsense"]),
    st.dictionaries(
        st.sampled_from(["key", "keys", "info", "prompts", "params", "model", "items", "epoch"]),
        JSON_LIKE,
    ),
)
def test_it_raises_only_wire_error_for_messages_with_wrong_fields(
    tag: str, fields: dict[str, Any]
) -> None:
    frame = msgspec.msgpack.encode({**fields, "t": tag})
    try:
        wire.decode(frame)
    except WireError:
        return


def test_it_ignores_fields_that_a_newer_peer_may_send() -> None:
    frame = msgspec.msgpack.encode({"t": "ask", "call": 3, "since": "later"})
    assert wire.decode(frame) == wire.Ask(call=3)


@pytest.mark.parametrize(
    "body",
    [
        {"t": "abort"},
        {"t": "abort", "keys": ["req_1"], "info": {"cause": "api"}},
        {"t": "abort", "keys": [["req_1", 1]], "info": {"cause": "whim"}},
        {"t": "submit", "key": ["req_1", 1]},
    ],
)
def test_it_names_what_is_wrong_with_a_message(body: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="not a message"):
        wire.decode(msgspec.msgpack.encode(body))
