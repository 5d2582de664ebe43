"""Errors keep their words, and events survive Celery's JSON."""

from __future__ import annotations

import json

import pytest

from inference import errors, events
from inference.generation import AbortCause, FinishReason, TokenLogprob, TokenLogprobs
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey, Status


def test_it_takes_the_docstring_as_the_message() -> None:
    assert errors.QueueFullError().message == "The queue is full; try again later."


def test_it_finds_an_error_by_the_code_that_travels() -> None:
    for kind in (errors.QueueFullError, errors.EngineLostError, errors.ModelNotFoundError):
        assert errors.by_code(kind.code) is kind


def test_it_gives_the_general_error_for_a_code_that_it_does_not_know() -> None:
    assert errors.by_code("from_the_future") is errors.HaltlineError


def test_it_declares_no_code_twice() -> None:
    family = errors._family(errors.HaltlineError)
    codes = [kind.code for kind in family if "code" in vars(kind)]
    assert len(codes) == len(set(codes))


def test_it_carries_a_whole_timeline_through_json() -> None:
    end = events.ChoiceEnd(
        index=0,
        finish_reason=FinishReason.ABORT,
        token_ids=[1, 2],
        text="a\ud7ff😀",
        logprobs=[TokenLogprobs(TokenLogprob(1, "a", -0.25), ())],
        abort=AbortInfo(cause=AbortCause.API),
    )
    event = events.RequestEvent(
        key=RequestKey("req_1", 1),
        replica="engine-0",
        epoch="e",
        timeline=[
            events.TimelineEntry(seq=1, at=1.0, trigger=Trigger.SCHEDULE),
            events.TimelineEntry(seq=2, at=2.0, trigger=Trigger.ABORT_CONFIRM, choice_end=end),
        ],
        output_tokens=2,
    )
    assert events.events_from_json(json.loads(json.dumps(events.to_json([event])))) == [event]


def test_it_carries_a_heartbeat_through_json() -> None:
    status = Status(
        call=0,
        epoch="e",
        replica="engine-0",
        model="m",
        running=1,
        waiting=2,
        free_slots=3,
        total_slots=4,
        free_blocks=5,
        total_blocks=6,
        steps=7,
        last_step_seconds=0.1,
        uptime_seconds=9.0,
    )
    beat = events.ReplicaBeat(
        status=status, bus_url="unix:/x", at=1.0, progress=[events.Progress(RequestKey("r", 1), 4)]
    )
    assert events.beat_from_json(json.loads(json.dumps(events.to_json(beat)))) == beat


@pytest.mark.parametrize("data", [None, 7, {}, [{}], [{"key": ["r"]}], "events"])
def test_it_raises_wire_error_for_what_is_no_event(data: object) -> None:
    with pytest.raises(errors.WireError, match="not an event"):
        events.events_from_json(data)
