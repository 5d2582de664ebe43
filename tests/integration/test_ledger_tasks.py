"""Celery's tasks over the real database and a real engine's side of the bus, without a worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.events import Progress, ReplicaBeat, to_json
from inference.wire import AbortInfo, Release, ReleaseOutcome, RequestKey, Status
from ledger import tasks
from ledger.models import Abort, Replica
from ledger.services import abort_open
from tests.cast import Member
from tests.unit.ledger.desk import submitted
from tests.unit.ledger.engine import Run

Scheduled = list[tuple[str, int, float]]


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> Scheduled:
    """What a task asked to run later: (abort id, attempt, seconds)."""
    calls: Scheduled = []

    def soon(abort_id: str, *, attempt: int = 0, after: float = 0.0) -> None:
        calls.append((abort_id, attempt, after))

    monkeypatch.setattr("ledger.tasks.abort_carry_out_soon", soon)
    return calls


def status(epoch: str = "e1") -> Status:
    return Status(
        call=0,
        epoch=epoch,
        replica="r0",
        model="tiny",
        running=1,
        waiting=0,
        free_slots=3,
        total_slots=4,
        free_blocks=9,
        total_blocks=10,
        steps=5,
        last_step_seconds=0.01,
        uptime_seconds=1.0,
    )


def beat(*progress: Progress, epoch: str = "e1", later: float = 0.0) -> Any:
    at = timezone.now().timestamp() + later
    return to_json(
        ReplicaBeat(status=status(epoch), bus_url="unix:/x", at=at, progress=list(progress))
    )


def test_it_records_a_batch_and_survives_a_malformed_one(owner: Member) -> None:
    row = submitted(owner)
    for bad in (None, 7, {"a": 1}, [{"key": 1}], [[]], "x"):
        tasks.events_record(bad)
        tasks.replica_beat(bad)
    tasks.events_record(to_json([Run.of(row).finish()]))
    row.refresh_from_db()
    assert row.state == "finished"


def test_it_keeps_the_newest_heartbeat_and_its_progress(owner: Member) -> None:
    row, done = submitted(owner), submitted(owner)
    tasks.events_record(to_json([Run.of(done).finish(tokens=3)]))
    keys = [RequestKey(one.pk, 1) for one in (row, done)]
    tasks.replica_beat(beat(*(Progress(key, 9) for key in keys)))
    tasks.replica_beat(beat(Progress(keys[0], 5), later=1))
    tasks.replica_beat(beat(Progress(keys[0], 99), later=-5))
    row.refresh_from_db()
    done.refresh_from_db()
    assert (row.output_token_count, done.output_token_count) == (9, 3)
    assert Replica.objects.get().load["free_slots"] == 3


def test_it_ends_what_an_earlier_epoch_held(owner: Member) -> None:
    row = submitted(owner)
    tasks.replica_beat(beat(later=1))
    row.refresh_from_db()
    assert row.is_live
    tasks.replica_beat(beat(epoch="e2", later=2))
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("failed", "engine_lost")
    tasks.replica_beat(beat(later=1.5))
    assert Replica.objects.get().epoch == "e2"


def test_it_ends_what_a_silent_replica_held(owner: Member) -> None:
    row = submitted(owner)
    tasks.replica_beat(beat())
    tasks.requests_sweep()
    row.refresh_from_db()
    assert row.is_live
    Replica.objects.update(last_beat_at=timezone.now() - timedelta(seconds=21))
    tasks.requests_sweep()
    row.refresh_from_db()
    assert (row.state, Replica.objects.get().state) == ("failed", "lost")


def test_it_tells_the_holder_and_looks_again_until_all_is_settled(
    owner: Member, scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = submitted(owner)
    tasks.replica_beat(beat(later=-1))
    told: list[tuple[str, list[RequestKey], AbortInfo]] = []

    def bus(url: str, *, keys: list[RequestKey], info: AbortInfo, **_: Any) -> list[Release]:
        told.append((url, keys, info))
        if len(told) == 1:
            raise ConnectionError("nobody listens")
        return []

    monkeypatch.setattr(tasks, "bus_abort", bus)
    abort = abort_open(caller=owner.caller, ids=[row.pk], reason="enough")
    tasks.abort_carry_out(abort.pk)
    tasks.abort_carry_out(abort.pk, attempt=1)
    assert [one[1:] for one in scheduled] == [(1, 0.25), (2, 0.5)]
    url, keys, info = told[1]
    assert (url, keys) == ("unix:/x", [RequestKey(row.pk, 1)])
    assert (info.id, info.cause, info.reason) == (abort.pk, "api", "enough")
    tasks.events_record(to_json([Run.of(row).abort(abort_id=abort.pk)]))
    tasks.abort_carry_out(abort.pk, attempt=2)
    assert (len(told), len(scheduled)) == (2, 2)


@pytest.mark.parametrize("outcome", [ReleaseOutcome.UNKNOWN, ReleaseOutcome.ENDED])
def test_it_asks_again_where_no_event_comes_and_then_says_unconfirmed(
    owner: Member,
    scheduled: Scheduled,
    monkeypatch: pytest.MonkeyPatch,
    outcome: ReleaseOutcome,
) -> None:
    """What an engine answers settles nothing; its event does, even after the receipt has closed."""
    row = submitted(owner)
    tasks.replica_beat(beat(later=-1))
    told: list[list[RequestKey]] = []

    def bus(url: str, *, keys: list[RequestKey], **_: Any) -> list[Release]:
        told.append(keys)
        return [Release(key, outcome) for key in keys]

    monkeypatch.setattr(tasks, "bus_abort", bus)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    for attempt in range(3):
        tasks.abort_carry_out(abort.pk, attempt=attempt)
    assert (len(told), abort.targets.get().outcome) == (3, "pending")
    Abort.objects.update(deadline_at=timezone.now())
    tasks.abort_carry_out(abort.pk, attempt=3)
    assert abort.targets.get().outcome == "unconfirmed"
    assert (len(told), Abort.objects.get().state) == (3, "done")
    tasks.events_record(to_json([Run.of(row).abort(abort_id=abort.pk)]))
    target = abort.targets.get()
    assert (target.outcome, target.confirmed_at is not None) == ("unconfirmed", True)
    row.refresh_from_db()
    assert row.state == "aborted"


def test_it_starts_again_what_was_left_behind(owner: Member, scheduled: Scheduled) -> None:
    abort = abort_open(caller=owner.caller, ids=[submitted(owner).pk])
    tasks.aborts_sweep()
    assert scheduled == []
    Abort.objects.update(next_look=timezone.now() - timedelta(seconds=1))
    tasks.aborts_sweep()
    assert [one[0] for one in scheduled] == [abort.pk]


def test_it_keeps_the_intent_while_the_broker_is_away(
    owner: Member,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    def away(*_: Any, **options: Any) -> None:
        assert options["retry"] is False
        raise OperationalError("no broker")

    monkeypatch.setattr(tasks.abort_carry_out, "apply_async", away)
    row = submitted(owner)
    with django_capture_on_commit_callbacks(execute=True):
        abort = abort_open(caller=owner.caller, ids=[row.pk])
    assert Abort.objects.get(pk=abort.pk).state == "accepted"
