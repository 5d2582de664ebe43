"""What becomes of a web process's requests when their engine is lost: an end, or a second chance.

What had begun there ends as failed(engine_lost), with what its client was sent. The rest is
received anew under the next generation, once. An abort that was recorded before wins: what it
means to stop does not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from inference.errors import EngineLostError, default_message
from inference.lifecycle import State, Trigger
from ledger.models import AbortTarget, InferenceRequest
from ledger.services.book import AT_ONCE, Book, book_open
from ledger.specs import Received, Step

FIRST_GENERATION = 1
# Longer than a web process tries to place a request again: after that, it is gone itself.
STRANDED_AFTER = timedelta(seconds=60)


def requests_requeue(*, replica: str, epoch: str, received: Sequence[Received]) -> list[str]:
    """The engine of this epoch is gone: settle what one web process had there.

    The ids of those that may be placed again: they are `received` now, under the next generation,
    and held by nobody. What had ended, or is not of that replica, epoch and generation, is left
    as it is.
    """
    again: list[str] = []
    for start in range(0, len(received), AT_ONCE):
        again += _settle(received[start : start + AT_ONCE], Q(replica=replica, epoch=epoch))
    return again


def _settle(received: Sequence[Received], held: Q) -> list[str]:
    found = {one.request_id: one for one in received}
    with book_open() as book:
        rows = [row for row in book.lock(found, held).values() if _is_meant(row, found[row.pk])]
        book.load_choices(rows)
        stopped = _meant_to_stop(row.pk for row in rows)
        return [row.pk for row in rows if _end_or_requeue(book, row, found[row.pk], stopped)]


def _is_meant(row: InferenceRequest, received: Received) -> bool:
    return row.is_live and row.generation == received.generation


def requeue_unattended(book: Book, row: InferenceRequest) -> bool:
    """The same for background work: no web process speaks for it, and a task will place it again.

    Whether it is received anew. For `replicas`, under the row's lock.
    """
    nothing = Received(request_id=row.pk, generation=row.generation)
    if row.web or _has_begun(book, row, nothing) or row.generation > FIRST_GENERATION:
        return False
    return not _meant_to_stop([row.pk]) and book.advance(row, _requeue_step(row))


def _meant_to_stop(request_ids: Iterable[str]) -> set[str]:
    """Targets of aborts that have not reached their rows yet: of large sets, for a moment."""
    pending = AbortTarget.objects.filter(outcome=AbortTarget.Outcome.PENDING)
    found = pending.filter(request_id__in=list(request_ids))
    return {str(one) for one in found.values_list("request_id", flat=True)}


def _end_or_requeue(
    book: Book, row: InferenceRequest, received: Received, stopped: set[str]
) -> bool:
    """Whether it may be placed again."""
    if _has_begun(book, row, received) or row.generation > FIRST_GENERATION or row.pk in stopped:
        _end(book, row, received)
        return False
    book.advance(row, _requeue_step(row))
    return True


def _has_begun(book: Book, row: InferenceRequest, received: Received) -> bool:
    """`queued` alone does not say it: what an engine tells comes in any order."""
    return (
        State(row.state) is not State.QUEUED
        or received.begun
        or row.first_scheduled_at is not None
        or row.output_token_count > 0
        or any(choice.finish_reason for choice in book.choices(row))
    )


def _requeue_step(row: InferenceRequest) -> Step:
    again = row.generation + 1
    return Step(
        trigger=Trigger.REQUEUE,
        actor=f"web:{row.web}" if row.web else f"replica:{row.replica}",
        detail={"lost": row.replica, "generation": again},
        fields={
            "generation": again,
            "replica": "",
            "epoch": "",
            "engine_seq": 0,
            "prompt_token_count": 0,
        },
    )


def _end(book: Book, row: InferenceRequest, received: Received) -> None:
    """The count is what the client was sent, whatever the engine may have said of its progress."""
    actor = f"replica:{row.replica}"
    for end in received.ends:
        book.end_choice(row, end, actor=actor, at=None)
    book.set(row, output_token_count=sum(len(end.token_ids) for end in received.ends))
    book.advance(row, _lost_step(actor))


def _lost_step(actor: str) -> Step:
    fields = {
        "error_code": EngineLostError.code,
        "error_message": default_message(EngineLostError),
    }
    return Step(trigger=Trigger.FAIL, actor=actor, fields=fields)


def requests_stranded(*, now: datetime | None = None) -> int:
    """End what was to be placed again by a web process that is gone itself. How many."""
    before = (now or timezone.now()) - STRANDED_AFTER
    waiting = InferenceRequest.objects.filter(
        state=State.RECEIVED.value, generation__gt=FIRST_GENERATION, changed_at__lt=before
    ).exclude(web="")
    ids = list(waiting.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
    with book_open() as book:
        rows = list(book.lock(ids, Q(state=State.RECEIVED.value, changed_at__lt=before)).values())
        book.load_choices(rows)
        return sum(book.advance(row, _lost_step("sweep")) for row in rows)
