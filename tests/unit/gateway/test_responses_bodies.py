"""What `/v1/responses` takes and refuses, and what of it becomes the engine's prompt."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict
from rest_framework import serializers

from gateway.api.responses_fields import ResponseSerializer, look_of
from gateway.orders import response_order
from gateway.response_input import input_messages
from inference.errors import InvalidRequestError
from inference.wire import ChatPrompt, RequestKey

BODY: dict[str, Any] = {"model": "tiny", "input": "hello"}


def checked(**fields: Any) -> dict[str, Any]:
    serializer = ResponseSerializer(data={**BODY, **fields})
    serializer.is_valid(raise_exception=True)
    found: dict[str, Any] = serializer.validated_data
    return found


def problem(**fields: Any) -> dict[str, Any]:
    with pytest.raises(serializers.ValidationError) as caught:
        checked(**fields)
    assert isinstance(caught.value.detail, dict)
    return caught.value.detail


def messages(**fields: Any) -> Any:
    (prompt,) = response_order(checked(**fields), client_id="").prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_it_takes_a_string() -> None:
    assert messages() == [{"role": "user", "content": "hello"}]


def test_it_puts_the_instructions_first() -> None:
    assert messages(instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert input_messages("hi", "") == [{"role": "user", "content": "hi"}]


def test_it_takes_messages_and_earlier_answers_as_they_were_received() -> None:
    earlier = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
    }
    asked = {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]}
    assert messages(input=[{"role": "developer", "content": "obey"}, earlier, asked]) == [
        {"role": "system", "content": "obey"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("", None),
        ([], None),
        (7, None),
        (["hello"], "0"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "1.role"),
        ([{"role": "tool", "content": "a"}], "0.role"),
        ([{"type": "function_call_output", "call_id": "1", "output": "x"}], "0.type"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "0.content.0"),
        ([{"role": "user", "content": "a", "weight": 1}], "0.weight"),
    ],
)
def test_it_names_what_is_wrong_with_an_input(given: Any, path: str | None) -> None:
    found = problem(input=given)["input"]
    assert list(found) == [path] if path is not None else isinstance(found, list)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_all": True},
        {"max_tokens": 5},
        {"n": 2},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"tools": [{"type": "web_search"}]},
        {"include": ["message.output_text.logprobs"]},
        {"truncation": "auto"},
        {"text": {"format": {"type": "json_object"}}},
        {"max_output_tokens": "5"},
        {"background": "true"},
        {"stream_options": {"include_obfuscation": False}},
        {"max_output_tokens": 2, "min_tokens": 3},
    ],
)
def test_it_refuses_what_it_would_not_do(fields: dict[str, Any]) -> None:
    assert problem(**fields)


def test_it_takes_what_changes_nothing() -> None:
    found = checked(
        tools=[],
        tool_choice="auto",
        include=[],
        reasoning={"effort": "low"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        truncation="disabled",
        previous_response_id=None,
        service_tier="auto",
    )
    assert found == BODY


def test_it_runs_in_the_background_only_what_it_keeps(settings: Any) -> None:
    assert checked(background=True, store=True)["background"] is True
    assert "background" in problem(background=True, store=False)
    settings.HALTLINE_RETENTION_DAYS = 0
    assert "background" in problem(background=True)


def test_it_orders_one_choice_with_the_sampling_asked_for() -> None:
    order = response_order(
        checked(max_output_tokens=9, temperature=0.5, top_p=0.9, seed=3, priority=2),
        client_id="mine",
    )
    message = order.submission(RequestKey("req_1", 1), owner="1", priority=0)
    params = message.params
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (9, 0.5, 0.9, 3)
    assert (message.n, message.attached, message.priority) == (1, True, 0)


def test_it_records_the_words_apart_from_the_parameters() -> None:
    fields = checked(instructions="be brief", background=True, metadata={"job": "7"}, store=True)
    spec = response_order(fields, client_id="mine").new_request()
    assert spec.kind == "response"
    assert spec.prompt == [{"input": "hello", "instructions": "be brief"}]
    assert spec.params == {"background": True, "store": True}
    assert (spec.metadata, spec.client_id, spec.choice_count) == ({"job": "7"}, "mine", 1)


def test_it_reads_how_a_response_is_to_be_shown() -> None:
    assert (look_of(QueryDict("")).stream, look_of(QueryDict("stream=true")).stream) == (
        False,
        True,
    )
    assert look_of(QueryDict("stream=true&starting_after=0")).after == 0
    assert look_of(QueryDict("stream=true&include_obfuscation=false")).after == -1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=" + "9" * 30, "starting_after"),
        ("stream=yes", "stream"),
        ("include=x", "include"),
    ],
)
def test_it_refuses_a_query_that_it_does_not_understand(query: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        look_of(QueryDict(query))
    assert caught.value.param == param
