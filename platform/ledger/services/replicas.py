"""What engines' heartbeats say, and what the loss of an engine means for the work it held."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from django.db import transaction
from django.db.models import Case, PositiveIntegerField, Q, Value, When
from django.utils import timezone

from inference.errors import EngineLostError, default_message
from inference.events import Progress, ReplicaBeat
from inference.lifecycle import Trigger
from ledger.models import LIVE_STATES, InferenceRequest, Replica
from ledger.push import progress_after_commit
from ledger.services.announce import changes_announce
from ledger.services.book import AT_ONCE, book_open
from ledger.services.requeue import requeue_unattended
from ledger.specs import Step

LOST_AFTER = timedelta(seconds=15)
# Web processes notice at the same time, and know more: what to run again, what clients were sent.
WEB_FIRST = timedelta(seconds=5)


def replica_beat_record(*, beat: ReplicaBeat) -> None:
    """Keep the newest heartbeat and the progress that it brings; an older one changes nothing.

    A beat of a new epoch means that the engine was started anew: what earlier ones held is lost.
    """
    at = datetime.fromtimestamp(beat.at, UTC)
    is_newest, is_new_epoch = _replica_write(beat, at)
    if not is_newest:
        return
    if is_new_epoch:
        held = Q(replica=beat.status.replica, queued_at__lt=at) & ~Q(epoch=beat.status.epoch)
        _lose(held, replica=beat.status.replica, received={})
    _progress_write(beat.progress, epoch=beat.status.epoch)


@transaction.atomic
def _replica_write(beat: ReplicaBeat, at: datetime) -> tuple[bool, bool]:
    """Whether it is the newest beat, and whether it is the first of its epoch."""
    status = beat.status
    known = Replica.objects.select_for_update(no_key=True).filter(pk=status.replica).first()
    if known is not None and known.last_beat_at >= at:
        return False, False
    is_new_epoch = known is None or known.epoch != status.epoch
    is_change = known is None or is_new_epoch or known.state != Replica.State.RUNNING
    Replica.objects.update_or_create(
        pk=status.replica,
        defaults={
            "epoch": status.epoch,
            "state": Replica.State.RUNNING,
            "model": status.model,
            "bus_url": beat.bus_url,
            "last_beat_at": at,
            "load": msgspec.to_builtins(status),
        },
    )
    if is_change:
        changes_announce(replicas=[status.replica], now=timezone.now())
    return True, is_new_epoch


def _progress_write(progress: list[Progress], *, epoch: str) -> None:
    for start in range(0, len(progress), AT_ONCE):
        _progress_write_some(progress[start : start + AT_ONCE], epoch=epoch)


@transaction.atomic
def _progress_write_some(progress: list[Progress], *, epoch: str) -> None:
    """One UPDATE. Counts only grow, and an end that is recorded stands."""
    cases = [
        When(
            pk=one.key.request_id,
            generation=one.key.generation,
            output_token_count__lt=one.output_tokens,
            then=Value(one.output_tokens),
        )
        for one in progress
    ]
    ids = sorted(one.key.request_id for one in progress)
    live = InferenceRequest.objects.filter(pk__in=ids, epoch=epoch, state__in=LIVE_STATES)
    # PostgreSQL locks rows in the order that it finds them: take them in ours first.
    locked = set(live.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    live.filter(pk__in=locked).update(
        output_token_count=Case(
            *cases, default="output_token_count", output_field=PositiveIntegerField()
        )
    )
    progress_after_commit(
        {one.key.request_id: one.output_tokens for one in progress if one.key.request_id in locked}
    )


def requests_lose(*, replica: str, epoch: str, received: Mapping[str, int] | None = None) -> int:
    """The engine of this epoch is gone: what it held ends as failed(engine_lost). How many.

    `received`: what one web process had there: tokens that its clients were sent, by request
    id. Then those requests alone are meant, and these are their counts.
    """
    held = Q(replica=replica, epoch=epoch)
    if received is None:
        return _lose(held, replica=replica, received={})
    ids = sorted(received)
    return sum(
        _lose(held & Q(pk__in=ids[start : start + AT_ONCE]), replica=replica, received=received)
        for start in range(0, len(ids), AT_ONCE)
    )


def _lose(held: Q, *, replica: str, received: Mapping[str, int]) -> int:
    live = InferenceRequest.objects.filter(held, state__in=LIVE_STATES)
    ids = list(live.order_by("pk").values_list("pk", flat=True))
    return sum(
        _lose_some(ids[start : start + AT_ONCE], held, replica=replica, received=received)
        for start in range(0, len(ids), AT_ONCE)
    )


def _lose_some(ids: list[str], held: Q, *, replica: str, received: Mapping[str, int]) -> int:
    fields = {
        "error_code": EngineLostError.code,
        "error_message": default_message(EngineLostError),
    }
    step = Step(trigger=Trigger.FAIL, actor=f"replica:{replica}", fields=fields)
    with book_open() as book:
        rows = list(book.lock(ids, held).values())
        book.load_choices(rows)
        for row in rows:
            if row.pk in received and row.is_live:
                book.set(row, output_token_count=received[row.pk])
        return sum(book.advance(row, step) for row in rows if not requeue_unattended(book, row))


def replicas_silent(*, now: datetime | None = None) -> int:
    """Mark the replicas that have been silent for too long as lost, and end what they held.

    Also ends what is still held by a replica that was marked before. What a client waits for is
    left to its web process for a moment. How many requests ended.
    """
    moment = now or timezone.now()
    silent = Replica.objects.filter(last_beat_at__lt=moment - LOST_AFTER)
    ended = 0
    for replica in silent.order_by("pk"):
        _mark_lost(replica, now=moment)
        held = Q(replica=replica.pk, epoch=replica.epoch)
        if replica.last_beat_at >= moment - LOST_AFTER - WEB_FIRST:
            held &= Q(web="")
        ended += _lose(held, replica=replica.pk, received={})
    return ended


@transaction.atomic
def _mark_lost(replica: Replica, *, now: datetime) -> None:
    same = Replica.objects.filter(pk=replica.pk, last_beat_at=replica.last_beat_at)
    if same.exclude(state=Replica.State.LOST).update(state=Replica.State.LOST):
        changes_announce(replicas=[replica.pk], now=now)
