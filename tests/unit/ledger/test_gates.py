from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from accounts.callers import ABORT_REQUESTS, CONTROL_REPLICAS, Caller
from inference.errors import FencedError, InvalidRequestError, PermissionDeniedError
from ledger.models import Abort, AbortTarget, Fence, InferenceRequest, Tombstone
from ledger.selectors import abort_receipt
from ledger.services import (
    abort_open,
    abort_review,
    events_record,
    fence_lift,
    gates,
    tombstones_purge,
)
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


def tombstone(member: Member, *ids: str, seconds: float = 30) -> Abort:
    return abort_open(caller=member.caller, ids=[*ids], tombstone=seconds, reason="too late")


def test_it_aborts_on_arrival_what_lies_under_a_tombstone(submit: Submit, owner: Member) -> None:
    """Case 14."""
    abort = tombstone(owner, "late")
    row = submit(owner, client_id="late", choice_count=2, n=2)
    assert (row.state, row.cause, row.reason) == ("aborted", "api", "too late")
    assert (row.abort_id, row.aborted_by, row.output_token_count) == (abort.pk, "key:owner", 0)
    assert [one.finish_reason for one in row.choices.all()] == ["abort", "abort"]
    assert submit(owner, client_id="other").state == "queued"
    assert submit(owner).state == "queued"


def test_it_aborts_every_bearer_until_the_tombstone_is_over(submit: Submit, owner: Member) -> None:
    tombstone(owner, "late")
    assert submit(owner, client_id="late").state == "aborted"
    assert submit(owner, client_id="late", placement=None).state == "aborted"
    Tombstone.objects.update(expires_at=timezone.now())
    assert submit(owner, client_id="late").state == "queued"


def test_it_keeps_a_tombstone_within_its_owner(
    submit: Submit, owner: Member, teammate: Member, stranger: Member
) -> None:
    tombstone(owner, "late")
    assert submit(stranger, client_id="late").state == "queued"
    assert submit(teammate, client_id="late").state == "aborted"


def test_it_lays_tombstones_on_what_means_nothing_yet_and_nothing_else(
    submit: Submit, owner: Member
) -> None:
    live, done = submit(owner, client_id="live"), submit(owner, client_id="done")
    events_record(events=[Run.of(done).finish()])
    abort = tombstone(owner, "late", "live", "done", f"req_{'0' * 32}", "no id at all")
    assert list(Tombstone.objects.values_list("client_id", flat=True)) == ["late"]
    shown = {one["requested_id"]: one for one in abort_receipt(abort=abort)["targets"]}
    assert (shown["late"]["outcome"], shown["late"]["detail"]) == ("not_found", "tombstone")
    assert shown["done"]["outcome"] == "already_finished"
    assert "detail" not in shown["no id at all"]
    live.refresh_from_db()
    assert live.state == "aborting"


@pytest.mark.parametrize("seconds", [None, 0])
def test_it_runs_what_comes_after_an_abort_without_tombstone(
    submit: Submit, owner: Member, seconds: float | None
) -> None:
    """Case 14."""
    abort = abort_open(caller=owner.caller, ids=["late"], tombstone=seconds)
    assert abort.state == "done"
    assert submit(owner, client_id="late").state == "queued"


def test_it_refuses_tombstones_that_cannot_be(owner: Member, operator: Member) -> None:
    for seconds in (301, -1, float("nan")):
        with pytest.raises(InvalidRequestError):
            tombstone(owner, "late", seconds=seconds)
    with pytest.raises(InvalidRequestError):
        abort_open(caller=owner.caller, everything=True, tombstone=30)
    staff = Caller(actor="user:x", owner_id=None, permissions=frozenset({ABORT_REQUESTS}))
    with pytest.raises(InvalidRequestError):
        abort_open(caller=staff, ids=["late"], tombstone=30)
    assert not Abort.objects.exists()


def test_it_follows_who_slipped_past_the_tombstone(
    submit: Submit, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row commits before the tombstone, its look came before that too: the task finds it."""
    monkeypatch.setattr("ledger.services.targets.requests_resolve", _nothing_resolves)
    row = submit(owner, client_id="late")
    abort = tombstone(owner, "late", "later")
    assert (abort.state, row.state) == ("accepted", "queued")
    abort_review(abort_id=abort.pk)
    abort_review(abort_id=abort.pk)
    row.refresh_from_db()
    assert (row.state, row.abort_id) == ("aborting", abort.pk)
    events_record(events=[Run.of(row).abort(tokens=1, abort_id=abort.pk)])
    abort.refresh_from_db()
    shown = abort_receipt(abort=abort)
    assert shown["status"] == "done"
    assert [(one["requested_id"], one["outcome"]) for one in shown["targets"]] == [
        ("late", "not_found"),
        ("later", "not_found"),
        ("late", "aborted"),
    ]


def _nothing_resolves(*, requested_ids: list[str], **_: object) -> list[object]:
    from ledger.specs import Resolved

    return [Resolved(requested_id=one) for one in requested_ids]


def test_it_closes_once_its_task_has_looked(owner: Member) -> None:
    abort = tombstone(owner, "late")
    assert abort.state == "accepted"
    abort_review(abort_id=abort.pk)
    abort.refresh_from_db()
    assert abort.state == "done"


def test_it_forgets_tombstones_whose_time_is_over(owner: Member) -> None:
    """Case 14: many unknown ids leave nothing behind."""
    aborts = [tombstone(owner, *(f"a{n}.{i}" for i in range(1000))) for n in range(2)]
    later = timezone.now() + timedelta(seconds=31)
    assert tombstones_purge(now=later) == 0
    for abort in aborts:
        abort_review(abort_id=abort.pk)
    assert tombstones_purge() == 0
    assert tombstones_purge(now=later) == 2000
    assert not Tombstone.objects.exists()


def test_it_changes_nothing_in_a_dry_run(owner: Member, operator: Member) -> None:
    abort_open(caller=owner.caller, ids=["late"], tombstone=30, dry_run=True)
    abort_open(caller=operator.caller, everything=True, fence=True, dry_run=True)
    assert (Tombstone.objects.count(), Fence.objects.count()) == (0, 0)


# -- fences


def test_it_refuses_new_work_behind_a_fence_until_it_is_lifted(
    submit: Submit, owner: Member, operator: Member
) -> None:
    row = submit(owner)
    abort = abort_open(caller=operator.caller, everything=True, fence=True)
    assert AbortTarget.objects.get(abort=abort).request_id == row.pk
    for placement in ({}, {"placement": None}):
        with pytest.raises(FencedError) as refused:
            submit(owner, **placement)
        assert (refused.value.http_status, refused.value.retry_after) == (503, 5.0)
    assert InferenceRequest.objects.count() == 1
    assert fence_lift(caller=operator.caller) == 1
    assert fence_lift(caller=operator.caller) == 0
    assert Fence.objects.get().lifted_by == "key:operator"
    assert submit(owner).state == "queued"
    row.refresh_from_db()
    assert row.state == "aborting"


def test_it_lifts_all_fences_at_once(submit: Submit, owner: Member, operator: Member) -> None:
    for _ in range(2):
        abort_open(caller=operator.caller, everything=True, fence=True)
    assert fence_lift(caller=operator.caller) == 2
    assert submit(owner).state == "queued"


@pytest.mark.parametrize("permissions", [{ABORT_REQUESTS}, {CONTROL_REPLICAS}])
def test_it_lets_only_operators_raise_and_lift_fences(owner: Member, permissions: set[str]) -> None:
    staff = Caller(actor="user:x", owner_id=None, permissions=frozenset(permissions))
    for caller in (owner.caller, staff):
        with pytest.raises(PermissionDeniedError):
            abort_open(caller=caller, everything=True, fence=True)
    with pytest.raises(PermissionDeniedError):
        fence_lift(caller=owner.caller)
    assert not Fence.objects.exists()


def test_it_raises_a_fence_with_abort_all_only(operator: Member) -> None:
    for selector in ({"ids": ["x"]}, {"filters": {"model": "tiny"}}):
        with pytest.raises(InvalidRequestError):
            abort_open(caller=operator.caller, fence=True, **selector)  # type: ignore[arg-type]


def test_it_raises_one_fence_for_one_idempotency_key(operator: Member) -> None:
    for _ in range(2):
        abort_open(
            caller=operator.caller,
            everything=True,
            fence=True,
            idempotency_key="k",
            body_digest="d",
        )
    assert Fence.objects.count() == 1
    assert gates.fence_lift(caller=operator.caller) == 1
