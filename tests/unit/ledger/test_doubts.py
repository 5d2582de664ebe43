from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.generation import AbortCause
from inference.wire import AbortInfo, RequestKey
from ledger.models import InferenceRequest, Replica
from ledger.selectors import abort_receipt
from ledger.services import (
    abort_open,
    abort_review,
    doubts,
    events_record,
    requests_answered,
    requests_doubtful,
)
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


@pytest.fixture(autouse=True)
def replica(db: None) -> Replica:
    return Replica.objects.create(
        id="r0", epoch="e1", model="tiny", bus_url="unix:/x", last_beat_at=timezone.now()
    )


def look(seconds: float, *, unknown: bool = False, ended: bool = False) -> int:
    """Ask about everything `seconds` from now, and answer alike for all. How many end."""
    now = timezone.now() + timedelta(seconds=seconds)
    found = 0
    for question in requests_doubtful(now=now):
        keys = list(question.why)
        found += requests_answered(
            question=question,
            unknown=keys if unknown else [],
            ended=keys if ended else [],
            now=now,
        )
    return found


def seen(row: InferenceRequest) -> tuple[str, str, str, int]:
    row.refresh_from_db()
    return row.state, row.cause, row.error_code, row.output_token_count


def test_it_ends_what_its_engine_never_heard_of_on_the_second_look(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner, choice_count=2, n=2)
    assert look(29, unknown=True) == 0
    row.refresh_from_db()
    assert row.asked_at is None
    assert look(31, unknown=True) == 0
    assert seen(row)[0] == "queued"
    assert look(45, unknown=True) == 0
    assert look(62, unknown=True) == 1
    assert seen(row) == ("failed", "", "unavailable", 0)
    assert [one.finish_reason for one in row.choices.all()] == ["error", "error"]


def test_it_confirms_the_abort_of_what_its_engine_never_heard_of(
    submit: Submit, owner: Member
) -> None:
    """The receipt has closed by then: the confirmation comes later and changes no outcome."""
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk], reason="enough")
    assert look(31, unknown=True) == 0
    abort_review(abort_id=abort.pk)
    row.refresh_from_db()
    assert row.state == "aborting"
    abort.deadline_at = timezone.now() - timedelta(seconds=1)
    abort.save()
    abort_review(abort_id=abort.pk)
    assert look(62, unknown=True) == 1
    assert seen(row) == ("aborted", "api", "", 0)
    assert row.choices.get().reason == "enough"
    abort.refresh_from_db()
    (target,) = abort_receipt(abort=abort)["targets"]
    assert (target["outcome"], target["released_at"]) == ("unconfirmed", None)
    assert target["confirmed_at"] is not None


def test_it_asks_with_the_words_of_the_abort(submit: Submit, owner: Member) -> None:
    waiting, stopped = submit(owner), submit(owner)
    abort = abort_open(caller=owner.caller, ids=[stopped.pk], reason="enough")
    (question,) = requests_doubtful(now=timezone.now() + timedelta(seconds=31))
    assert (question.replica, question.epoch, question.url) == ("r0", "e1", "unix:/x")
    assert question.why == {
        RequestKey(waiting.pk, 1): AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED),
        RequestKey(stopped.pk, 1): AbortInfo(id=abort.pk, cause=AbortCause.API, reason="enough"),
    }


def test_it_leaves_what_its_engine_has(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    assert [look(31, unknown=True), look(95), look(160, unknown=True)] == [0, 0, 0]
    assert seen(row)[0] == "queued"
    assert look(200, unknown=True) == 1


def test_it_waits_for_the_word_of_an_engine_in_which_it_ended(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner)
    assert [look(31 + 61 * n, ended=True) for n in range(4)] == [0] * 4
    events_record(events=[Run.of(row).finish(tokens=4)])
    assert seen(row) == ("finished", "", "", 4)


@pytest.mark.parametrize("is_aborting", [True, False])
def test_it_calls_an_end_lost_that_the_engine_told_and_forgot(
    submit: Submit, owner: Member, is_aborting: bool
) -> None:
    """It ran: so nobody may say that it was stopped with no token."""
    row = submit(owner)
    events_record(events=[Run.of(row).schedule()])
    abort = abort_open(caller=owner.caller, ids=[row.pk]) if is_aborting else None
    assert [look(31, unknown=True), look(62, unknown=True)] == [0, 1]
    assert seen(row)[:3] == ("failed", "", "engine_lost")
    if abort is not None:
        assert abort.targets.get().outcome == "engine_lost"


def test_it_does_not_say_never_where_the_engine_may_have_forgotten(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner)
    later = doubts.ENGINE_REMEMBERS.total_seconds()
    assert [look(later, unknown=True), look(later + 31, unknown=True)] == [0, 1]
    assert seen(row)[:3] == ("failed", "", "engine_lost")


def test_it_forgets_a_doubt_of_an_earlier_place(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    look(31, unknown=True)
    later = timezone.now() + timedelta(seconds=40)
    InferenceRequest.objects.filter(pk=row.pk).update(generation=2, changed_at=later)
    assert look(75, unknown=True) == 0
    assert look(106, unknown=True) == 1


def test_it_changes_nothing_once_something_was_told(submit: Submit, owner: Member) -> None:
    """The answer is old by the time that it comes: the request has ended or moved on."""
    done, moved = submit(owner), submit(owner)
    look(31, unknown=True)
    now = timezone.now() + timedelta(seconds=62)
    (question,) = requests_doubtful(now=now)
    events_record(events=[Run.of(done).finish()])
    InferenceRequest.objects.filter(pk=moved.pk).update(epoch="e2")
    assert requests_answered(question=question, unknown=list(question.why), now=now) == 0
    assert (seen(done)[0], seen(moved)[0]) == ("finished", "queued")


def test_it_asks_each_in_turn(
    submit: Submit, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "AT_ONCE", 2)
    rows = [submit(owner) for _ in range(5)]
    now = timezone.now() + timedelta(seconds=31)
    asked = [
        {key.request_id for question in requests_doubtful(now=now) for key in question.why}
        for _ in range(4)
    ]
    assert [len(one) for one in asked] == [2, 2, 1, 0]
    assert set.union(*asked) == {row.pk for row in rows}


def test_it_asks_nobody_about_the_work_of_lost_replicas(
    submit: Submit, owner: Member, replica: Replica
) -> None:
    submit(owner)
    now = timezone.now() + timedelta(seconds=31)
    Replica.objects.update(epoch="e2")
    assert requests_doubtful(now=now) == []
    Replica.objects.update(epoch="e1", state=Replica.State.LOST)
    assert requests_doubtful(now=now) == []
