"""The events of a response: their order, their numbers, and what a client that comes back gets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api.responses_objects import Frame
from gateway.api.responses_script import Script
from gateway.outcomes import Outcome
from inference.generation import AbortCause, FinishReason, Usage
from inference.wire import AbortInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIFE = {"created", "queued", "in_progress", "completed", "incomplete", "failed"}


def frame(**fields: Any) -> Frame:
    return Frame(response_id="resp_1", created=1, model="tiny", fields=fields)


def outcome(reason: FinishReason = FinishReason.STOP, *, tokens: int = 3, **more: Any) -> Outcome:
    usage = Usage(prompt_tokens=2, output_tokens=tokens)
    return Outcome(finish_reason=reason, usage=usage, ended_at=NOW, **more)


def told(
    *pieces: str, background: bool = False, after: int = -1, end: Outcome | None = None
) -> list[Any]:
    script = Script(frame(background=background), after=after)
    events = script.opening()
    for piece in pieces:
        events += script.output(piece)
    return events + script.ending(end or outcome())


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def numbers(events: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def text_of(events: list[Any]) -> str:
    return "".join(event.get("delta", "") for event in events)


def test_it_tells_a_response_in_the_api_s_order() -> None:
    assert kinds(told("ab", "c")) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_it_says_that_background_work_waits() -> None:
    events = told("a", background=True)
    assert kinds(events)[:3] == ["created", "queued", "in_progress"]
    assert events[0]["response"]["status"] == "queued"
    assert events[0]["response"]["background"] is True


def test_it_counts_upwards() -> None:
    for background in (False, True):
        found = numbers(told("ab", "", "c", "def", background=background))
        assert found == sorted(set(found))
        assert found[0] == 0


def test_it_numbers_the_same_text_alike_however_it_comes() -> None:
    whole, parts = told("abcdef"), told("a", "bcd", "", "ef")
    assert numbers(whole)[-4:] == numbers(parts)[-4:]
    by_number = {event["sequence_number"]: event for event in parts}
    for event in whole:
        if event["type"] != "response.output_text.delta":
            assert by_number[event["sequence_number"]] == event


@pytest.mark.parametrize("background", [False, True])
def test_it_goes_on_after_any_number_without_a_gap_or_a_repetition(background: bool) -> None:
    first = told("ab", "cde", "f", background=background)
    for seen in range(len(first)):
        after = first[seen]["sequence_number"]
        for pieces in (("ab", "cde", "f"), ("abcdef",), tuple("abcdef")):
            rest = told(*pieces, background=background, after=after)
            assert all(number > after for number in numbers(rest))
            assert text_of(first[: seen + 1]) + text_of(rest) == "abcdef"
            both = kinds(first[: seen + 1]) + kinds(rest)
            assert [k for k in both if "delta" not in k] == [
                k for k in kinds(first) if "delta" not in k
            ]


def test_it_has_nothing_more_for_who_has_it_all() -> None:
    everything = told("abc")
    assert told("abc", after=everything[-1]["sequence_number"]) == []


def test_it_tells_a_cancelled_one_with_what_it_had() -> None:
    info = AbortInfo(id="abt_1", cause=AbortCause.API, reason="enough")
    last = told("ab", end=outcome(FinishReason.ABORT, tokens=2, abort=info))[-1]
    response = last["response"]
    assert last["type"] == "response.incomplete"
    assert response["status"] == "cancelled"
    assert response["abort"] == {"id": "abt_1", "cause": "api", "reason": "enough"}
    assert response["output"][0]["content"][0]["text"] == "ab"
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 2
    assert response["incomplete_details"] is None


def test_it_tells_one_that_never_ran_without_output() -> None:
    info = AbortInfo(cause=AbortCause.API)
    events = told(background=True, end=outcome(FinishReason.ABORT, tokens=0, abort=info))
    assert kinds(events) == ["created", "queued", "incomplete"]
    assert events[-1]["response"]["output"] == []


def test_it_opens_its_message_even_without_text() -> None:
    events = told(end=outcome(tokens=1))
    assert "output_item.added" in kinds(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("reason", "event", "status"),
    [
        (FinishReason.STOP, "response.completed", "completed"),
        (FinishReason.LENGTH, "response.incomplete", "incomplete"),
        (FinishReason.ERROR, "response.failed", "failed"),
        (FinishReason.EXPIRED, "response.failed", "failed"),
    ],
)
def test_it_tells_each_end_apart(reason: FinishReason, event: str, status: str) -> None:
    failed = status == "failed"
    words = {"error_code": "engine_lost", "error_message": "gone"} if failed else {}
    last = told("a", end=outcome(reason, **words))[-1]
    assert (last["type"], last["response"]["status"]) == (event, status)
    assert last["response"]["error"] == (
        {"code": "engine_lost", "message": "gone"} if failed else None
    )
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert last["response"]["incomplete_details"] == details


def test_it_gives_back_what_was_asked_for() -> None:
    asked = frame(temperature=0.5, instructions="be brief", metadata={"job": "7"}, user="me")
    shown = asked.live("in_progress")
    assert shown["temperature"] == 0.5
    assert shown["top_p"] == 1.0
    assert shown["instructions"] == "be brief"
    assert shown["metadata"] == {"job": "7"}
    assert set(kinds(told("a"))) & LIFE
