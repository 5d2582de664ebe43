"""Writers that meet at the same rows at the same time, each in its own connection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from inference.errors import ConflictError, FencedError
from ledger.models import LIVE_STATES, Abort, Change, InferenceRequest, Transition
from ledger.services import abort_open, abort_review, events_record, fence_lift
from tests.cast import Member
from tests.unit.ledger.desk import submitted
from tests.unit.ledger.engine import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def in_memory(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.fixture(autouse=True)
def no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.enqueue.abort_carry_out_soon", lambda abort_id: None)


def race(*works: Callable[[], Any]) -> list[Any]:
    """All at once; each answer, or the `ConflictError` that it ended with."""
    start = Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return work()
        except ConflictError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def test_it_gives_one_end_and_a_true_receipt_when_finish_meets_abort(
    owner: Member, operator: Member, rounds: int
) -> None:
    for _ in range(8 * rounds):
        rows = [submitted(owner, client_id="") for _ in range(3)]
        ends = [Run.of(row).finish() for row in rows]
        race(
            lambda ends=ends: events_record(events=ends[:2]),
            lambda ends=ends: events_record(events=[ends[2], ends[1]]),
            lambda rows=rows: abort_open(caller=owner.caller, ids=[row.pk for row in rows]),
            lambda: abort_open(caller=operator.caller, everything=True),
        )
    assert set(InferenceRequest.objects.values_list("state", flat=True)) == {"finished"}
    for row in InferenceRequest.objects.all():
        seqs = Transition.objects.filter(request=row).order_by("seq").values_list("seq", flat=True)
        assert list(seqs) == list(range(1, row.transition_seq + 1))
    for abort in Abort.objects.exclude(state="done"):
        abort_review(abort_id=abort.pk)
    assert not Abort.objects.exclude(state="done").exists()


def test_it_lets_one_of_many_have_a_client_id(owner: Member) -> None:
    works = [lambda: submitted(owner, client_id="job")] * 4
    answers = race(*works)
    assert sum(isinstance(one, ConflictError) for one in answers) == 3


def test_it_makes_one_abort_of_many_calls_with_one_idempotency_key(owner: Member) -> None:
    row = submitted(owner)

    def call() -> str:
        return abort_open(
            caller=owner.caller, ids=[row.pk], idempotency_key="k", body_digest="d"
        ).pk

    assert len(set(race(call, call, call, call))) == 1
    assert Abort.objects.count() == 1


def test_it_lets_nothing_slip_between_a_fence_and_its_cut(
    owner: Member, operator: Member, rounds: int
) -> None:
    """What was admitted is a target; what was refused left no row."""

    def submit_until_refused() -> int:
        for count in range(200):
            try:
                submitted(owner)
            except FencedError:
                return count
        raise AssertionError("nobody was refused")

    def stop_all() -> Abort:
        return abort_open(caller=operator.caller, everything=True, fence=True)

    for _ in range(3 * rounds):
        *counts, abort = race(submit_until_refused, submit_until_refused, stop_all)
        targets = set(abort.targets.values_list("request_id", flat=True))
        assert len(targets) == sum(counts)
        live = InferenceRequest.objects.filter(state__in=LIVE_STATES)
        assert set(live.values_list("pk", flat=True)) == targets
        events_record(events=[Run.of(row).abort(abort_id=abort.pk) for row in live])
        fence_lift(caller=operator.caller)


def test_it_runs_nothing_that_meets_its_tombstone(owner: Member, rounds: int) -> None:
    """One of the two sees the other, whichever commits first."""
    for number in range(10 * rounds):
        name = f"late-{number}"
        abort, row = race(
            lambda name=name: abort_open(caller=owner.caller, ids=[name], tombstone=30),
            lambda name=name: submitted(owner, client_id=name),
        )
        abort_review(abort_id=abort.pk)
        row.refresh_from_db()
        assert (row.state in {"aborting", "aborted"}, row.abort_id) == (True, abort.pk)


def test_it_makes_changes_visible_in_the_order_of_their_cursors(owner: Member) -> None:
    done: list[bool] = []
    seen: list[int] = []

    def write() -> None:
        for _ in range(15):
            submitted(owner)
        done.append(True)

    def read() -> None:
        cursor = 0
        while True:
            is_last = len(done) == 2
            found = list(Change.objects.filter(pk__gt=cursor).values_list("pk", flat=True))
            seen.extend(sorted(found))
            cursor = max([cursor, *found])
            if is_last:
                return

    race(write, write, read)
    assert len(seen) == 30
    assert seen == sorted(seen)
