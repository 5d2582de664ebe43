from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import Abort, AbortTarget, InferenceRequest, Replica
from ledger.selectors import abort_get, abort_receipt
from ledger.services import (
    abort_holders,
    abort_open,
    abort_review,
    aborts_to_resume,
    events_record,
    requests_lose,
)
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


def receipt(abort: Abort) -> dict[str, Any]:
    abort.refresh_from_db()
    return abort_receipt(abort=abort)


def outcomes(abort: Abort) -> list[str]:
    return [one["outcome"] for one in receipt(abort)["targets"]]


def expire(abort: Abort) -> None:
    Abort.objects.filter(pk=abort.pk).update(deadline_at=timezone.now() - timedelta(seconds=1))


def test_it_settles_a_running_request_by_its_event(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    run = Run.of(row)
    events_record(events=[run.schedule()])
    abort = abort_open(caller=owner.caller, ids=[row.pk], reason="too long")
    row.refresh_from_db()
    assert (row.state, row.aborted_by, row.reason) == ("aborting", "key:owner", "too long")
    assert (abort.state, outcomes(abort)) == ("accepted", ["pending"])
    events_record(events=[run.abort(tokens=41, abort_id=abort.pk)])
    shown = receipt(abort)
    target = shown["targets"][0]
    assert (shown["status"], target["outcome"]) == ("done", "aborted")
    assert (target["state_before"], target["output_token_count"]) == ("running", 41)
    assert target["choices"] == [{"index": 0, "output_token_count": 41}]
    assert target["released_at"] is not None
    assert shown["counts"]["aborted"] == shown["counts"]["targets"] == 1
    assert shown["result"]["aborted"] == [{"request_id": row.pk, "output_token_count": 41}]
    row.refresh_from_db()
    assert (row.state, row.cause, row.abort_id) == ("aborted", "api", abort.pk)


def test_it_ends_at_once_what_nobody_holds(submit: Submit, owner: Member) -> None:
    row = submit(owner, placement=None)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    row.refresh_from_db()
    assert (row.state, row.cause, row.abort_id) == ("aborted", "api", abort.pk)
    choice = row.choices.get()
    assert (choice.finish_reason, choice.cause, choice.abort_id) == ("abort", "api", abort.pk)
    assert (abort.state, outcomes(abort)) == ("done", ["aborted"])


def test_it_is_truthful_when_the_request_finishes_first(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    events_record(events=[Run.of(row).finish(tokens=4)])
    row.refresh_from_db()
    assert (row.state, row.cause, row.aborted_by, row.abort_id) == ("finished", "", "", "")
    target = receipt(abort)["targets"][0]
    assert (target["outcome"], target["output_token_count"]) == ("already_finished", 4)
    assert target["released_at"] is None


def test_it_tells_what_had_ended_what_is_unknown_and_hides_strangers(
    submit: Submit, owner: Member, stranger: Member
) -> None:
    done, gone, foreign = submit(owner), submit(owner, placement=None), submit(stranger)
    events_record(events=[Run.of(done).finish()])
    abort_open(caller=owner.caller, ids=[gone.pk])
    abort = abort_open(caller=owner.caller, ids=["no", done.pk, foreign.pk, gone.pk, "a\x00b"])
    assert outcomes(abort) == ["not_found", "already_finished", "not_found", "aborted", "not_found"]
    assert abort.state == "done"
    foreign.refresh_from_db()
    assert foreign.state == "queued"
    with pytest.raises(NotFoundError):
        abort_get(caller=stranger.caller, abort_id=abort.pk)


def test_it_settles_two_aborts_of_one_request(
    submit: Submit, owner: Member, operator: Member
) -> None:
    row = submit(owner)
    first = abort_open(caller=owner.caller, ids=[row.pk])
    second = abort_open(caller=operator.caller, ids=[row.pk, row.pk])
    events_record(events=[Run.of(row).abort(abort_id=first.pk)])
    assert (outcomes(first), outcomes(second)) == (["aborted"], ["aborted"])
    row.refresh_from_db()
    assert row.aborted_by == "key:owner"


def test_it_blames_the_abort_that_the_engine_names(
    submit: Submit, owner: Member, operator: Member
) -> None:
    row = submit(owner)
    abort_open(caller=owner.caller, ids=[row.pk])
    second = abort_open(caller=operator.caller, ids=[row.pk])
    events_record(events=[Run.of(row).abort(abort_id=second.pk)])
    row.refresh_from_db()
    assert (row.abort_id, row.aborted_by) == (second.pk, "key:operator")


def test_it_reaches_everything_or_only_ones_own(
    submit: Submit, owner: Member, stranger: Member, operator: Member
) -> None:
    mine, held = submit(owner), submit(owner, placement=None)
    foreign, ended = submit(stranger), submit(owner)
    events_record(events=[Run.of(ended).finish()])
    abort = abort_open(caller=owner.caller, everything=True)
    assert {one["request_id"] for one in receipt(abort)["targets"]} == {mine.pk, held.pk}
    assert outcomes(abort) == ["pending", "aborted"]
    abort = abort_open(caller=operator.caller, everything=True)
    assert {one["request_id"] for one in receipt(abort)["targets"]} == {mine.pk, foreign.pk}


def test_it_aborts_what_a_filter_names(submit: Submit, owner: Member) -> None:
    row = submit(owner, metadata={"job": "7"})
    submit(owner, metadata={"job": "8"})
    abort = abort_open(
        caller=owner.caller, filters={"metadata": {"job": "7"}, "state": "queued", "model": "tiny"}
    )
    assert [one["request_id"] for one in receipt(abort)["targets"]] == [row.pk]
    nothing = abort_open(caller=owner.caller, filters={"owner": "elsewhere"})
    assert (nothing.state, receipt(nothing)["counts"]["targets"]) == ("done", 0)


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"ids": []},
        {"ids": [""]},
        {"ids": ["x"] * 1001},
        {"filters": {}},
        {"filters": {"state__in": "queued"}},
        {"ids": ["x"], "everything": True},
    ],
)
def test_it_refuses_what_is_not_one_selector(owner: Member, selector: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        abort_open(caller=owner.caller, **selector)
    assert not Abort.objects.exists()


def test_it_refuses_who_may_not(db: None) -> None:
    with pytest.raises(PermissionDeniedError):
        abort_open(caller=Caller(actor="user:viewer", owner_id=None), everything=True)


def test_it_changes_nothing_in_a_dry_run(submit: Submit, owner: Member) -> None:
    row, done = submit(owner), submit(owner)
    events_record(events=[Run.of(done).finish()])
    shown = abort_receipt(
        abort=abort_open(caller=owner.caller, ids=[row.pk, done.pk, "no"], dry_run=True)
    )
    assert [one["outcome"] for one in shown["targets"]] == [
        "pending",
        "already_finished",
        "not_found",
    ]
    assert (shown["id"], shown["dry_run"], shown["counts"]["targets"]) == (None, True, 3)
    shown = abort_receipt(abort=abort_open(caller=owner.caller, everything=True, dry_run=True))
    assert shown["counts"]["pending"] == 1
    row.refresh_from_db()
    assert (row.state, Abort.objects.count(), AbortTarget.objects.count()) == ("queued", 0, 0)


def test_it_answers_the_same_for_the_same_idempotency_key(
    submit: Submit, owner: Member, stranger: Member
) -> None:
    row = submit(owner)

    def call(member: Member, digest: str) -> str:
        return abort_open(
            caller=member.caller, ids=[row.pk], idempotency_key="k", body_digest=digest
        ).pk

    first = call(owner, "a")
    assert call(owner, "a") == first
    assert call(stranger, "b") != first
    with pytest.raises(ConflictError):
        call(owner, "b")


def test_it_says_engine_lost_where_the_engine_is_gone(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    requests_lose(replica="r0", epoch="e1", received={row.pk: 2})
    target = receipt(abort)["targets"][0]
    assert (target["outcome"], target["output_token_count"]) == ("engine_lost", 2)
    later = abort_open(caller=owner.caller, ids=[row.pk])
    assert outcomes(later) == ["already_finished"]


def test_it_is_aborted_if_one_choice_was_before_the_engine_went(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner, choice_count=2, n=2)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    info = AbortInfo(id=abort.pk, cause=AbortCause.API)
    events_record(events=[Run.of(row).end_choice(0, reason=FinishReason.ABORT, abort=info)])
    assert requests_lose(replica="r0", epoch="e1") == 1
    row.refresh_from_db()
    assert (row.state, row.cause, row.abort_id) == ("aborted", "api", abort.pk)
    assert [one.finish_reason for one in row.choices.order_by("index")] == ["abort", "error"]
    assert row.choices.get(index=1).error_code == "engine_lost"
    assert outcomes(abort) == ["aborted"]


def test_it_closes_the_receipt_at_its_deadline_and_keeps_the_confirmation(
    submit: Submit, owner: Member
) -> None:
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk, "no"])
    assert abort_review(abort_id=abort.pk).state == "in_progress"  # type: ignore[union-attr]
    expire(abort)
    abort_review(abort_id=abort.pk)
    assert (receipt(abort)["status"], outcomes(abort)) == ("done", ["unconfirmed", "not_found"])
    row.refresh_from_db()
    assert row.state == "aborting"
    events_record(events=[Run.of(row).abort(abort_id=abort.pk)])
    target = receipt(abort)["targets"][0]
    assert (target["outcome"], target["released_at"]) == ("unconfirmed", None)
    assert target["confirmed_at"] is not None


def test_it_names_the_holders_of_what_is_pending(submit: Submit, owner: Member) -> None:
    row, held = submit(owner), submit(owner, placement=None)
    abort = abort_open(caller=owner.caller, ids=[row.pk, held.pk])
    assert abort_holders(abort=abort) == {("r0", None): [RequestKey(row.pk, 1)]}
    Replica.objects.create(
        id="r0", epoch="e1", model="tiny", bus_url="unix:/x", last_beat_at=timezone.now()
    )
    assert abort_holders(abort=abort) == {("r0", "unix:/x"): [RequestKey(row.pk, 1)]}


def test_it_moves_a_large_set_on_in_its_task(
    submit: Submit, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.services.aborts.AT_ONCE", 3)
    rows = [submit(owner, placement=None) for _ in range(8)]
    abort = abort_open(caller=owner.caller, everything=True)
    assert outcomes(abort) == ["pending"] * 8
    abort_review(abort_id=abort.pk)
    assert (receipt(abort)["status"], outcomes(abort)) == ("done", ["aborted"] * 8)
    assert InferenceRequest.objects.filter(state="aborted").count() == len(rows)


def test_it_settles_what_ended_between_the_intent_and_the_task(
    submit: Submit, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.services.aborts.AT_ONCE", 0)
    row = submit(owner)
    abort = abort_open(caller=owner.caller, everything=True)
    monkeypatch.setattr("ledger.services.aborts.AT_ONCE", 500)
    # As if the end had committed just before the targets became visible to it.
    InferenceRequest.objects.filter(pk=row.pk).update(state="finished")
    abort_review(abort_id=abort.pk)
    assert outcomes(abort) == ["already_finished"]


def test_it_resumes_only_what_is_overdue(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    assert aborts_to_resume() == []
    assert aborts_to_resume(now=timezone.now() + timedelta(minutes=1)) == [abort.pk]
    events_record(events=[Run.of(row).abort(abort_id=abort.pk)])
    assert aborts_to_resume(now=timezone.now() + timedelta(minutes=1)) == []


def test_it_notes_the_first_run_of_what_is_being_aborted(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    abort_open(caller=owner.caller, ids=[row.pk])
    events_record(events=[Run.of(row).schedule()])
    row.refresh_from_db()
    assert row.state == "aborting"
    assert row.first_scheduled_at is not None


def test_it_confirms_an_end_before_the_intent_was_recorded(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    events_record(events=[Run.of(row).abort(abort_id="abt_unknown")])
    row.refresh_from_db()
    assert (row.state, row.abort_id, row.aborted_by) == ("aborted", "abt_unknown", "")
    assert row.transitions.get(choice_index=None, trigger=Trigger.ABORT_CONFIRM).seq == 4
