from __future__ import annotations

import time
from itertools import permutations
from typing import Any

import msgspec
import pytest

from inference.events import TimelineEntry, events_from_json, to_json
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import Change, InferenceRequest, Transition
from ledger.services import events_record
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


def states(row: InferenceRequest) -> list[str]:
    found = Transition.objects.filter(request=row, choice_index=None).order_by("seq")
    return [one.to_state for one in found]


def test_it_records_a_whole_life_from_its_last_event(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    run = Run.of(row)
    run.schedule(), run.preempt(), run.schedule()
    recorded = events_record(events=events_from_json(to_json([run.finish(tokens=5)])))
    assert recorded.applied == 1
    row.refresh_from_db()
    assert states(row) == ["received", "queued", "running", "preempted", "running", "finished"]
    assert (row.output_token_count, row.prompt_token_count) == (5, 7)
    choice = row.choices.get()
    assert (choice.finish_reason, choice.token_ids, choice.text) == (
        "stop",
        [0, 1, 2, 3, 4],
        "xxxxx",
    )
    assert row.received_at <= row.queued_at <= row.first_scheduled_at <= row.finished_at
    assert row.transition_seq == Transition.objects.filter(request=row).count() == 7


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_it_records_the_same_in_any_order_and_twice(
    submit: Submit, owner: Member, order: tuple[int, ...]
) -> None:
    row = submit(owner)
    run = Run.of(row)
    told = [run.schedule(), run.preempt(), run.abort(tokens=2)]
    for index in (*order, *order):
        events_record(events=[told[index]])
    row.refresh_from_db()
    assert states(row) == ["received", "queued", "running", "preempted", "aborted"]
    assert (row.cause, row.reason, row.output_token_count) == ("api", "enough", 2)


def test_it_counts_what_changes_nothing(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    run = Run.of(row)
    first, last = run.schedule(), run.finish()
    gap = msgspec.structs.replace(last, timeline=last.timeline[1:])
    other_epoch = msgspec.structs.replace(last, epoch="e0")
    other_generation = msgspec.structs.replace(last, key=RequestKey(row.pk, 2))
    stranger = msgspec.structs.replace(last, key=RequestKey("req_no", 1))
    events = [gap, other_epoch, other_generation, stranger, last, first, last]
    recorded = events_record(events=events)
    assert (recorded.gaps, recorded.late, recorded.unknown) == (1, 2, 1)
    assert (recorded.applied, recorded.duplicates) == (1, 2)
    assert events_record(events=[run.abort()]).late == 1
    row.refresh_from_db()
    assert row.state == "finished"


def test_it_calls_a_request_aborted_if_one_choice_was(submit: Submit, owner: Member) -> None:
    row = submit(owner, choice_count=3, n=3)
    run = Run.of(row)
    info = AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED)
    run.end_choice(2, tokens=4)
    run.end_choice(0, tokens=1, reason=FinishReason.ABORT, abort=info)
    events_record(events=[run.event()])
    row.refresh_from_db()
    assert row.state == "queued"
    run.end_choice(1, tokens=2, trigger=Trigger.FINISH)
    events_record(events=[run.event()])
    row.refresh_from_db()
    assert (row.state, row.cause, row.output_token_count) == ("aborted", "client_disconnected", 7)
    assert [one.finish_reason for one in row.choices.order_by("index")] == ["abort", "stop", "stop"]


def test_it_keeps_the_error_of_a_failure(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    events_record(events=[Run.of(row).fail()])
    row.refresh_from_db()
    assert (row.state, row.error_code, row.cause) == ("failed", "engine_error", "")


def test_it_closes_the_choices_that_an_end_does_not_mention(submit: Submit, owner: Member) -> None:
    row = submit(owner, choice_count=2, n=2)
    run = Run.of(row)
    run._tell(Trigger.EXPIRE)
    events_record(events=[run.event()])
    row.refresh_from_db()
    assert row.state == "expired"
    assert {one.finish_reason for one in row.choices.all()} == {"expired"}


def test_it_never_dates_a_step_before_the_one_that_it_follows(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner)
    run = Run.of(row)
    event = run.finish()
    early = [msgspec.structs.replace(entry, at=entry.at - 60) for entry in event.timeline]
    events_record(events=[msgspec.structs.replace(event, timeline=early)])
    row.refresh_from_db()
    assert row.finished_at is not None
    assert row.finished_at >= row.queued_at


def test_it_announces_each_recorded_event_once_and_last(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    run = Run.of(row)
    events_record(events=[run.schedule()])
    events_record(events=[run.finish()])
    events_record(events=[run.event()])
    spans = Change.objects.filter(object_id=row.pk).order_by("pk")
    assert [(one.first_seq, one.last_seq) for one in spans] == [(1, 2), (3, 3), (4, 5)]


def test_it_records_one_step_of_many_in_few_statements(
    submit: Submit, owner: Member, django_assert_max_num_queries: Any
) -> None:
    runs = [Run.of(submit(owner)) for _ in range(20)]
    at = time.time()
    events = [run.schedule() for run in runs]
    same = [msgspec.structs.replace(one.timeline[0], at=at) for one in events]
    batch = [
        msgspec.structs.replace(one, timeline=[entry])
        for one, entry in zip(events, same, strict=True)
    ]
    with django_assert_max_num_queries(10):
        assert events_record(events=batch).applied == 20


def test_it_records_why_an_engine_refused(submit: Submit, owner: Member) -> None:
    row = submit(owner, choice_count=2, n=2)
    run = Run.of(row)
    detail = {"code": "context_length_exceeded", "message": "too \x00 long"}
    run.timeline.append(TimelineEntry(seq=1, at=time.time(), trigger=Trigger.REJECT, detail=detail))
    assert events_record(events=[run.event()]).applied == 1
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("rejected", "context_length_exceeded")
    assert row.error_message == "too \ufffd long"
    for choice in row.choices.all():
        assert (choice.finish_reason, choice.error_code) == ("error", "context_length_exceeded")


@pytest.mark.parametrize("detail", [{}, {"code": None}, {"code": 7, "message": ["x"]}])
def test_it_records_a_refusal_whatever_it_says(
    submit: Submit, owner: Member, detail: dict[str, Any]
) -> None:
    row = submit(owner)
    run = Run.of(row)
    run.timeline.append(TimelineEntry(seq=1, at=time.time(), trigger=Trigger.REJECT, detail=detail))
    events_record(events=[run.event()])
    row.refresh_from_db()
    assert row.state == "rejected"


def test_it_cuts_words_that_are_too_long_for_the_record(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    info = AbortInfo(id="a" * 500, cause=AbortCause.API, reason="x" * 5000)
    run = Run.of(row)
    event = run.end_choice(
        reason=FinishReason.ABORT,
        trigger=Trigger.ABORT_CONFIRM,
        abort=info,
        error_code="e" * 500,
    )
    assert events_record(events=[event]).applied == 1
    row.refresh_from_db()
    assert (row.state, len(row.abort_id)) == ("aborted", 40)
