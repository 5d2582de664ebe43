"""What new work meets at the door: fences that refuse it, tombstones that abort it on arrival.

Admission holds a lock that it shares, a fence takes the same lock alone: each admission is either
committed before the fence's cut, or sees the fence. A tombstone needs no lock: admission looks
for one after its row has committed, the abort's task looks for rows after the tombstone has.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Max
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import FencedError, InvalidRequestError, PermissionDeniedError
from inference.lifecycle import Trigger
from ledger.ids import client_id_fits
from ledger.models import (
    LIVE_STATES,
    Abort,
    AbortTarget,
    Fence,
    InferenceRequest,
    Tombstone,
)
from ledger.services.book import AT_ONCE, Book, book_open
from ledger.services.targets import abort_step

LONGEST_TOMBSTONE = 300.0
TOMBSTONE_DETAIL = "tombstone"
FENCE_RETRY_AFTER = 5.0
# Any number, as long as it is the same in every process and nobody else's.
_LOCK = 4_851_700_267


def fence_pass() -> None:
    """Before anything else in a transaction that admits work. Raises `FencedError`."""
    _lock("pg_advisory_xact_lock_shared")
    if Fence.objects.filter(lifted_at=None).exists():
        raise FencedError(retry_after=FENCE_RETRY_AFTER)


def fence_close() -> None:
    """Before anything else in a transaction that raises a fence: waits for running admissions."""
    _lock("pg_advisory_xact_lock")


def fence_raise(abort: Abort) -> None:
    Fence.objects.create(abort=abort, raised_at=abort.created_at)


def fence_lift(*, caller: Caller) -> int:
    """Admit new work again. How many fences stood; safe to repeat. Raises `PermissionDeniedError`.

    It lifts fences and nothing else: what they aborted stays so.
    """
    if not caller.may_control:
        raise PermissionDeniedError
    standing = Fence.objects.filter(lifted_at=None)
    return standing.update(lifted_at=timezone.now(), lifted_by=caller.actor)


def _lock(function: str) -> None:
    """Until the end of the transaction. On SQLite an IMMEDIATE transaction is alone anyway."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}(%s)", [_LOCK])


def tombstone_check(caller: Caller, seconds: float) -> None:
    """Raises `InvalidRequestError` for a time, or a caller, that tombstones are not made for."""
    if not 0 <= seconds <= LONGEST_TOMBSTONE:
        raise InvalidRequestError(
            f"a tombstone stands for at most {LONGEST_TOMBSTONE:g} seconds", param="tombstone"
        )
    tombstone_owner(caller)


def tombstone_owner(caller: Caller) -> int:
    """Within whose ids a caller's tombstones stand. Raises `InvalidRequestError` without one."""
    if caller.owner_id is None:
        raise InvalidRequestError(
            "a tombstone stands within an owner, and the caller has none", param="tombstone"
        )
    return caller.owner_id


def tombstones_lay(abort: Abort, *, owner_id: int, seconds: float) -> None:
    """On every id of the abort that means nothing yet, and that a client could give a request."""
    unknown = AbortTarget.objects.filter(
        abort=abort, outcome=AbortTarget.Outcome.NOT_FOUND, detail=""
    )
    found = unknown.values_list("pk", "requested_id")
    fit = {pk: one for pk, one in found if client_id_fits(one)}
    expires_at = abort.created_at + timedelta(seconds=seconds)
    Tombstone.objects.bulk_create(
        [
            Tombstone(owner_id=owner_id, client_id=one, abort=abort, expires_at=expires_at)
            for one in fit.values()
        ],
        batch_size=AT_ONCE,
    )
    for some in _chunks(sorted(fit)):
        AbortTarget.objects.filter(pk__in=some).update(detail=TOMBSTONE_DETAIL)


def _chunks(keys: list[int]) -> Iterable[list[int]]:
    return (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE))


def tombstone_meet(row: InferenceRequest) -> None:
    """After the commit of a new row: abort it if its id lies under a tombstone.

    Nobody else holds the request yet, so this is the whole abort.
    """
    if not row.client_id:
        return
    stones = Tombstone.objects.select_related("abort").filter(
        owner_id=row.owner_id, client_id=row.client_id, expires_at__gt=timezone.now()
    )
    stone = stones.order_by("pk").first()
    if stone is None:
        return
    with book_open() as book:
        book.lock([row.pk])
        book.advance(book.row(row.pk), abort_step(stone.abort, Trigger.ABORT_CONFIRM))
    row.refresh_from_db()


def tombstones_follow(abort: Abort) -> None:
    """Add, as targets, live requests that bear an id of this abort's tombstones.

    Those are the ones that committed before the tombstones and did not see them. Not called
    before these have committed. Safe to repeat.
    """
    stones = Tombstone.objects.filter(abort=abort)
    first = stones.first()
    if first is None:
        return
    bearers = InferenceRequest.objects.filter(
        owner_id=first.owner_id,
        client_id__in=stones.values("client_id"),
        state__in=LIVE_STATES,
        received_at__lt=first.expires_at,
    )
    ids = list(bearers.values_list("pk", flat=True))
    if ids:
        with book_open() as book:
            _targets_add(book, abort, book.lock(ids).values())


def _targets_add(book: Book, abort: Abort, rows: Iterable[InferenceRequest]) -> None:
    """Locks the abort after its requests, as every end of a request does: no deadlock."""
    Abort.objects.select_for_update(no_key=True).get(pk=abort.pk)
    present = AbortTarget.objects.filter(abort=abort)
    known = set(present.values_list("request_id", flat=True))
    last = present.aggregate(last=Max("position"))["last"]
    added = [row for row in rows if row.pk not in known and row.is_live]
    AbortTarget.objects.bulk_create(
        AbortTarget(
            abort=abort,
            position=position,
            requested_id=row.client_id,
            request=row,
            generation=row.generation,
            state_before=row.state,
        )
        for position, row in enumerate(added, start=last + 1)
    )
    book.involve([abort.pk] if added else [])


def tombstones_purge(*, now: datetime | None = None) -> int:
    """Forget those whose time is over. How many.

    Not those of an abort that has not been looked at once: its task has still to follow them.
    """
    over = Tombstone.objects.filter(expires_at__lt=now or timezone.now())
    return over.exclude(abort__state=Abort.Status.ACCEPTED).delete()[0]
