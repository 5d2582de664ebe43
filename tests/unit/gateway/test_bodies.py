"""What the bodies of both routes may hold, and the field that each refusal names."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rest_framework.exceptions import ParseError

from gateway.api.errors import TooLargeError, as_haltline_error
from gateway.api.parsers import StrictJSONParser
from gateway.api.serializers import (
    ChatCompletionSerializer,
    CompletionSerializer,
    GenerationSerializer,
)
from gateway.orders import Order, chat_order, completion_order
from inference.errors import HaltlineError
from inference.wire import ChatPrompt, TextPrompt, TokenPrompt

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}


def checked(kind: type[GenerationSerializer], body: Any) -> dict[str, Any]:
    serializer = kind(data=body)
    serializer.is_valid(raise_exception=True)
    fields: dict[str, Any] = serializer.validated_data
    return fields


def chat(**fields: Any) -> Order:
    return chat_order(checked(ChatCompletionSerializer, {**CHAT, **fields}), client_id="")


def text(**fields: Any) -> Order:
    return completion_order(checked(CompletionSerializer, {**TEXT, **fields}), client_id="")


def refusal(kind: type[GenerationSerializer], body: Any) -> HaltlineError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which error it becomes is the test
        checked(kind, body)
    error = as_haltline_error(caught.value)
    assert error.http_status == 400
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "3"),
        ("n", True),
        ("n", 0),
        ("n", 1.5),
        ("temperature", "1"),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_k", -2),
        ("max_tokens", 0),
        ("stream", "true"),
        ("stream", 1),
        ("stop", [1]),
        ("stop", ""),
        ("seed", 2**70),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": "2"}),
        ("metadata", {"a": 1}),
        ("metadata", []),
        ("deadline", 0),
        ("deadline", -1),
        ("request_id", 5),
        ("model", 7),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("stream_options", {"include_usage": True}),
        ("no_such_field", 1),
    ],
)
def test_it_refuses_and_names_the_field(field: str, value: Any) -> None:
    error = refusal(ChatCompletionSerializer, {**CHAT, field: value})
    assert error.param is not None
    assert error.param.split(".")[0] == field


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "boss", "content": "a"}], "messages.0.role"),
        ([{"role": "user", "content": "a", "x": 1}], "messages.0.x"),
        ([CHAT["messages"][0], {"role": "user", "content": 5}], "messages.1.content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages.0.content.0",
        ),
    ],
)
def test_it_says_which_message_is_wrong(messages: Any, param: str) -> None:
    error = refusal(ChatCompletionSerializer, {"model": "tiny", "messages": messages})
    assert error.param == param


@pytest.mark.parametrize("prompt", [None, [], {}, 5, [[]], ["a", 5], [1, "a"], [-1], [True], ""])
def test_it_refuses_a_prompt_that_is_none(prompt: Any) -> None:
    error = refusal(CompletionSerializer, {"model": "tiny", "prompt": prompt})
    assert (error.param or "").split(".")[0] == "prompt"


def test_it_samples_nothing_only_where_the_prompt_is_echoed() -> None:
    order = text(max_tokens=0, echo=True, logprobs=1)
    assert (order.params.max_tokens, order.params.prompt_logprobs) == (0, 1)
    for fields in ({}, {"echo": False}, {"echo": None}):
        error = refusal(CompletionSerializer, {**TEXT, "max_tokens": 0, **fields})
        assert error.param == "max_tokens"


def test_it_names_the_field_that_the_prompt_came_in() -> None:
    assert [one.field_of("prompt") for one in (chat(), text())] == ["messages", "prompt"]
    assert [chat().field_of(word) for word in ("logit_bias", None)] == ["logit_bias", None]


@pytest.mark.parametrize("charset", ["nonsense", "utf-16", "hex", ""])
def test_it_reads_json_as_utf_8_only(charset: str) -> None:
    with pytest.raises(ParseError):
        StrictJSONParser().parse(io.BytesIO(b"{}"), f"application/json; charset={charset}")
    for fine in ("utf-8", "UTF8", '"utf-8"', "us-ascii"):
        assert (
            StrictJSONParser().parse(io.BytesIO(b"{}"), f"application/json; charset={fine}") == {}
        )


def test_it_takes_null_for_not_given() -> None:
    order = chat(temperature=None, stop=None, stream=None, tools=None, metadata=None, n=None)
    assert order.new_request().params == {}
    assert (order.params.temperature, order.n, order.stream) == (1.0, 1, False)


def test_it_accepts_what_changes_nothing() -> None:
    order = chat(
        user="u",
        store=True,
        service_tier="auto",
        tools=[],
        parallel_tool_calls=True,
        verbosity="low",
    )
    assert order.new_request().params == {"user": "u"}


def test_it_joins_text_parts_for_the_template_and_keeps_what_was_sent() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]
    order = chat(messages=messages)
    assert order.new_request().prompt == [messages]
    assert order.prompts == [
        ChatPrompt([{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}])
    ]


def test_it_prefers_max_completion_tokens() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    assert chat().params.max_tokens is None
    assert text().params.max_tokens == 16


def test_it_reads_every_form_of_prompt() -> None:
    assert text(prompt="a").prompts == [TextPrompt("a")]
    assert text(prompt=["a", "b"]).prompts == [TextPrompt("a"), TextPrompt("b")]
    assert text(prompt=[1, 2]).prompts == [TokenPrompt([1, 2])]
    assert text(prompt=[[1], [2]], n=3).choice_count == 6


def test_it_turns_logprobs_of_both_routes_into_one_number() -> None:
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).params.logprobs == 3
    assert chat(logprobs=False).params.logprobs is None
    assert text(logprobs=2, echo=True).params.prompt_logprobs == 2
    assert refusal(ChatCompletionSerializer, {**CHAT, "top_logprobs": 2}).param == "top_logprobs"


def test_it_hands_the_engine_what_it_needs() -> None:
    order = text(stop="x", top_k=-1, logit_bias={"5": 2}, deadline=3, priority=9, seed=4)
    assert order.params.stop == ("x",)
    assert order.params.top_k == 0
    assert order.params.logit_bias == {5: 2.0}
    assert (order.new_request().deadline, order.new_request().priority) == (3.0, 9)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"NaN",
        b'{"a": NaN}',
        b"\xff\xfe",
        b'"\\ud800"',
        b'{"a": "\\u0000"}',
        b'{"\\u0000": 1}',
        b"[" * 100_000,
        b"[" * 900 + b'"\\u0000"' + b"]" * 900,
        b"1e999",
    ],
)
def test_it_parses_only_json(body: bytes) -> None:
    with pytest.raises(ParseError):
        StrictJSONParser().parse(io.BytesIO(body))


def test_it_lets_an_escaped_backslash_through() -> None:
    assert StrictJSONParser().parse(io.BytesIO(b'"\\\\u0000"')) == "\\u0000"


def test_it_reads_no_more_than_the_limit(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    with pytest.raises(TooLargeError):
        StrictJSONParser().parse(io.BytesIO(b'"' + b"a" * 10 + b'"'))
