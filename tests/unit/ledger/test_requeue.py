"""The loss of an engine, as the record has it: what may run again, and what wins over that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from inference.events import ChoiceEnd
from inference.generation import FinishReason
from inference.lifecycle import Trigger
from inference.wire import RequestKey
from ledger.ends import request_ends, requests_ended
from ledger.models import AbortTarget, InferenceRequest, Replica
from ledger.selectors import abort_receipt
from ledger.services import (
    abort_holders,
    abort_open,
    abort_review,
    events_record,
    request_advance,
    requests_requeue,
    requests_stranded,
)
from ledger.services.requeue import STRANDED_AFTER
from ledger.specs import Received
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


def lose(*rows: InferenceRequest, **received: Any) -> list[str]:
    """What the web process of these says after it lost `r0` of epoch `e1`."""
    told = [Received(request_id=row.pk, generation=row.generation, **received) for row in rows]
    return requests_requeue(replica="r0", epoch="e1", received=told)


def again(row: InferenceRequest, *, generation: int = 2) -> bool:
    placed = request_advance(
        request_id=row.pk,
        generation=generation,
        trigger=Trigger.ENQUEUE,
        actor="web:web-1",
        fields={"replica": "r1", "epoch": "f1", "web": "web-1"},
    )
    row.refresh_from_db()
    return placed


def outcome(abort: Any) -> str:
    abort.refresh_from_db()
    found: str = abort_receipt(abort=abort)["targets"][0]["outcome"]
    return found


def test_it_requeues_what_has_not_begun_under_the_next_generation(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner, client_id="mine")
    assert lose(row) == [row.pk]
    row.refresh_from_db()
    assert (row.state, row.generation, row.replica, row.epoch) == ("received", 2, "", "")
    assert again(row)
    late = Run(row.pk, generation=1).finish()
    assert events_record(events=[late]).late == 1
    run = Run(row.pk, generation=2, replica="r1", epoch="f1")
    assert events_record(events=[run.schedule(), run.finish(tokens=2)]).applied == 2
    row.refresh_from_db()
    assert (row.state, row.output_token_count) == ("finished", 2)
    steps = row.transitions.filter(choice_index=None).values_list("trigger", flat=True)
    assert [*steps] == ["receive", "enqueue", "requeue", "enqueue", "schedule", "finish"]


def test_it_requeues_once(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    lose(row)
    again(row)
    told = [Received(request_id=row.pk, generation=2)]
    assert requests_requeue(replica="r1", epoch="f1", received=told) == []
    row.refresh_from_db()
    assert (row.state, row.error_code, row.generation) == ("failed", "engine_lost", 2)


def test_it_ends_what_ran_and_keeps_what_its_client_was_sent(submit: Submit, owner: Member) -> None:
    row = submit(owner, n=2, choice_count=2)
    events_record(events=[Run.of(row).schedule()])
    InferenceRequest.objects.update(output_token_count=50)
    ends = [
        ChoiceEnd(
            index=0, finish_reason=FinishReason.ERROR, token_ids=[1, 2], text="ab", error_code="x"
        ),
        ChoiceEnd(index=1, finish_reason=FinishReason.STOP, token_ids=[3], text="c"),
    ]
    assert lose(row, begun=True, ends=ends) == []
    row.refresh_from_db()
    assert (row.state, row.error_code, row.output_token_count) == ("failed", "engine_lost", 3)
    (end,) = request_ends(request_ids=[row.pk, "req_unknown"])
    assert [(one.text, one.token_ids, one.finish_reason) for one in end.choices] == [
        ("ab", [1, 2], "error"),
        ("c", [3], "stop"),
    ]


@pytest.mark.parametrize("sign", ["begun", "scheduled", "milestone", "tokens"])
def test_it_does_not_run_again_what_may_have_begun(
    submit: Submit, owner: Member, sign: str
) -> None:
    row = submit(owner)
    if sign == "scheduled":
        events_record(events=[Run.of(row).schedule()])
    if sign == "milestone":
        InferenceRequest.objects.update(first_scheduled_at=timezone.now())
    if sign == "tokens":
        InferenceRequest.objects.update(output_token_count=1)
    assert lose(row, begun=sign == "begun") == []
    row.refresh_from_db()
    assert row.error_code == "engine_lost"


def test_it_leaves_what_is_not_of_that_engine_or_has_ended(submit: Submit, owner: Member) -> None:
    done, elsewhere, later = submit(owner), submit(owner), submit(owner)
    events_record(events=[Run.of(done).finish()])
    InferenceRequest.objects.filter(pk=elsewhere.pk).update(epoch="e2")
    InferenceRequest.objects.filter(pk=later.pk).update(generation=2)
    assert lose(done, elsewhere, later) == []
    states = InferenceRequest.objects.values_list("state", flat=True)
    assert sorted(states) == ["finished", "queued", "queued"]


def test_it_lets_an_abort_win_that_was_recorded_before(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    assert lose(row) == []
    row.refresh_from_db()
    assert (row.state, row.error_code, row.generation) == ("failed", "engine_lost", 1)
    assert (outcome(abort), abort.state) == ("engine_lost", "done")


def test_it_lets_an_abort_win_whose_large_set_has_not_reached_its_rows(
    submit: Submit, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = submit(owner)
    monkeypatch.setattr("ledger.services.aborts.AT_ONCE", 0)
    abort = abort_open(caller=owner.caller, everything=True)
    row.refresh_from_db()
    assert row.state == "queued"
    assert lose(row) == []
    assert outcome(abort) == "engine_lost"


def test_it_ends_at_once_what_is_aborted_while_nobody_holds_it(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner)
    lose(row)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    assert (outcome(abort), abort.state) == ("aborted", "done")
    assert not again(row)


def test_it_means_the_request_by_a_target_that_was_fixed_before_a_requeue(
    submit: Submit, owner: Member
) -> None:
    """On PostgreSQL a set may be fixed while the requeue of one of its rows commits."""
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk, "nobody"])
    InferenceRequest.objects.filter(pk=row.pk).update(state="queued")
    AbortTarget.objects.filter(request=None).update(outcome="pending")
    AbortTarget.objects.filter(request=row).update(outcome="not_found")
    lose(row)
    AbortTarget.objects.filter(request=row).update(outcome="pending")
    again(row)
    beat = {"epoch": "f1", "model": "tiny", "last_beat_at": timezone.now()}
    Replica.objects.create(pk="r1", bus_url="unix:/x", **beat)
    abort_review(abort_id=abort.pk)
    row.refresh_from_db()
    assert row.state == "aborting"
    assert abort_holders(abort=abort) == {("r1", "unix:/x"): [RequestKey(row.pk, 2)]}
    run = Run(row.pk, generation=2, replica="r1", epoch="f1")
    events_record(events=[run.abort(tokens=0, abort_id=abort.pk)])
    assert outcome(abort) == "aborted"


def test_it_ends_what_its_web_process_left_behind(submit: Submit, owner: Member) -> None:
    row, held = submit(owner), submit(owner, placement=None)
    lose(row)
    assert requests_stranded() == 0
    assert requests_stranded(now=timezone.now() + STRANDED_AFTER + timedelta(seconds=1)) == 1
    row.refresh_from_db()
    held.refresh_from_db()
    assert (row.state, row.error_code, held.state) == ("failed", "engine_lost", "held")


def test_it_tells_how_requests_ended(submit: Submit, owner: Member) -> None:
    live, done = submit(owner), submit(owner, placement=None)
    abort = abort_open(caller=owner.caller, ids=[done.pk], reason="enough")
    ids = [live.pk, done.pk, "req_unknown"]
    assert requests_ended(request_ids=ids) == [done.pk]
    (end,) = request_ends(request_ids=ids)
    (choice,) = end.choices
    assert choice.abort is not None
    assert (choice.abort.id, choice.abort.cause, choice.abort.reason) == (abort.pk, "api", "enough")


def test_it_pushes_to_the_web_process_only_what_no_engine_announced(
    submit: Submit,
    owner: Member,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    sent: dict[str, Any] = {}
    monkeypatch.setattr("ledger.push.push", sent.update)
    told, lost = submit(owner), submit(owner)
    with django_capture_on_commit_callbacks(execute=True):
        events_record(events=[Run.of(told).finish()])
        lose(lost, begun=True)
    assert sent["web.web-1"] == {"type": "ended", "request_ids": [lost.pk]}
