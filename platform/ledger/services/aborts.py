"""Aborts: the intent, what is to be told to whom, and the receipt.

An intent fixes its targets in one transaction. What nobody holds ends with it; what an engine
holds becomes `aborting`, and from then on only the engine's event, or the loss of the engine,
settles the target. Reaching the engines is the tasks' business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from inference.generation import AbortCause
from inference.lifecycle import DISPATCHED, UNDISPATCHED, State, Trigger
from inference.wire import RequestKey
from ledger.enqueue import abort_carry_out_after_commit
from ledger.ids import abort_id_new
from ledger.models import Abort, AbortTarget, Replica
from ledger.services.book import AT_ONCE, Book, book_open
from ledger.services.gates import (
    fence_close,
    fence_raise,
    tombstone_check,
    tombstone_owner,
    tombstones_follow,
    tombstones_lay,
)
from ledger.services.targets import (
    Selector,
    abort_step,
    selector_of,
    targets_insert,
    targets_pending,
    targets_preview,
)
from ledger.storable import text_storable

Outcome = AbortTarget.Outcome

# How long a task may be late with its next look before the sweeper starts another.
PATIENCE = timedelta(seconds=5)
_HELD_BY_ENGINE = sorted(state.value for state in DISPATCHED | {State.ABORTING})


def abort_open(
    *,
    caller: Caller,
    ids: list[str] | None = None,
    everything: bool = False,
    filters: dict[str, Any] | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    tombstone: float | None = None,
    fence: bool = False,
    idempotency_key: str | None = None,
    body_digest: str | None = None,
    cause: AbortCause = AbortCause.API,
) -> Abort:
    """Record the intent to stop what one selector names; it is carried out after the commit.

    Returns at once, without a word to an engine; targets that nobody holds are settled already.
    A caller without `operate` reaches its owner's requests only. `dry_run` writes nothing: the
    answer is not saved and holds a preview. `tombstone`: seconds for which an id of `ids` that
    means nothing yet stays aborted. `fence`, with `everything`: no new work after this, until
    `fence_lift`. Raises `PermissionDeniedError`, `ConflictError` (an idempotency key with another
    body), `InvalidRequestError` (a selector that is not one, an option that does not go with it).
    """
    if not caller.may_abort or (fence and not _may_fence(caller)):
        raise PermissionDeniedError
    selector = selector_of(caller=caller, ids=ids, everything=everything, filters=filters)
    selector = _with_options(selector, tombstone=tombstone, fence=fence)
    intent = _intent(caller, selector, reason=reason, cause=cause)
    if dry_run:
        intent.preview, intent.preview_counts = targets_preview(selector)
        return intent
    intent.idempotency_key, intent.body_digest = idempotency_key or "", body_digest or ""
    return _before(intent) or _open(intent, selector)


def _may_fence(caller: Caller) -> bool:
    """A fence stops what others send: whoever raises one can lift it, and reaches everything."""
    return caller.may_abort_all and caller.may_control


def _with_options(selector: Selector, *, tombstone: float | None, fence: bool) -> Selector:
    """Raises `InvalidRequestError` for an option that does not go with this selector."""
    if fence and selector.json != {"abort_all": True}:
        raise InvalidRequestError("a fence goes with abort_all only", param="fence")
    if tombstone is not None:
        if selector.ids is None:
            raise InvalidRequestError("a tombstone goes with ids only", param="tombstone")
        tombstone_check(selector.caller, tombstone)
    options = {"tombstone": tombstone or None, "fence": fence or None}
    asked = {name: value for name, value in options.items() if value is not None}
    return replace(
        selector, tombstone=tombstone or 0.0, fence=fence, json={**selector.json, **asked}
    )


def _intent(caller: Caller, selector: Selector, *, reason: str | None, cause: AbortCause) -> Abort:
    now = timezone.now()
    return Abort(
        id=abort_id_new(),
        owner_id=caller.owner_id,
        requested_by=caller.actor,
        cause=cause.value,
        selector=selector.json,
        reason=text_storable(reason or ""),
        created_at=now,
        deadline_at=now + timedelta(seconds=settings.HALTLINE_ABORT_DEADLINE),
        next_look=now + PATIENCE,
    )


def _open(intent: Abort, selector: Selector) -> Abort:
    try:
        with book_open() as book:
            _write(book, intent, selector)
    except IntegrityError:
        # Another call with the same idempotency key was quicker.
        before = _before(intent)
        if before is None:
            raise
        return before
    intent.refresh_from_db()
    return intent


def _write(book: Book, intent: Abort, selector: Selector) -> None:
    if selector.fence:
        fence_close()
    intent.save(force_insert=True)
    count = targets_insert(intent, selector, book)
    if selector.fence:
        fence_raise(intent)
    if selector.tombstone:
        owner_id = tombstone_owner(selector.caller)
        tombstones_lay(intent, owner_id=owner_id, seconds=selector.tombstone)
    # A large set is only fixed here; the task moves it, in short transactions.
    if count <= AT_ONCE:
        _intend(book, intent, targets_pending(intent.pk, limit=AT_ONCE))
    book.involve([intent.pk])
    abort_carry_out_after_commit(intent.pk)


def _before(intent: Abort) -> Abort | None:
    """The abort that the same idempotency key made before. Raises `ConflictError`."""
    if not intent.idempotency_key:
        return None
    same = Abort.objects.filter(
        requested_by=intent.requested_by, idempotency_key=intent.idempotency_key
    )
    found = next((one for one in same if one.owner_id == intent.owner_id), None)
    if found is not None and found.body_digest != intent.body_digest:
        raise ConflictError(
            "the Idempotency-Key was used before, with another body", param="Idempotency-Key"
        )
    return found


def _intend(book: Book, abort: Abort, targets: Iterable[AbortTarget]) -> None:
    """Move each target on as far as the ledger alone can. Repeating it does no harm."""
    ids = sorted({one.request_id for one in targets if one.request_id})
    book.lock(ids)
    rows = [book.row(pk) for pk in ids]
    book.load_choices(rows)
    for row in rows:
        if row.is_live:
            held_by_nobody = State(row.state) in UNDISPATCHED
            trigger = Trigger.ABORT_CONFIRM if held_by_nobody else Trigger.ABORT_ASK
            book.advance(row, abort_step(abort, trigger))
        else:
            book.settle(row)


def abort_holders(*, abort: Abort) -> dict[tuple[str, str | None], list[RequestKey]]:
    """What is to be told to whom: keys of pending targets by (replica, its bus URL if known)."""
    held = AbortTarget.objects.filter(
        abort_id=abort.pk, outcome=Outcome.PENDING, request__state__in=_HELD_BY_ENGINE
    )
    keys: dict[str, list[RequestKey]] = defaultdict(list)
    # The generation that the request has now: one that was requeued is still the one that is meant.
    row_of = ("request__replica", "request_id", "request__generation")
    rows = held.order_by("position").values_list(*row_of)
    for replica, request_id, generation in rows:
        if request_id is not None:
            keys[replica].append(RequestKey(request_id, generation))
    urls = dict(Replica.objects.filter(pk__in=keys).values_list("pk", "bus_url"))
    return {(replica, urls.get(replica) or None): found for replica, found in keys.items()}


def abort_review(*, abort_id: str, next_look: datetime | None = None) -> Abort | None:
    """Look at an abort again: move targets on, settle what has ended, close it if it is due.

    What is still pending at the deadline is `unconfirmed`: that closes the receipt, not the
    request. None for an id that is unknown. Safe to repeat at any time.
    """
    abort = Abort.objects.filter(pk=abort_id).first()
    if abort is None or abort.state == Abort.Status.DONE:
        return abort
    if abort.state == Abort.Status.ACCEPTED:
        tombstones_follow(abort)
    after = -1
    while targets := targets_pending(abort_id, limit=AT_ONCE, after=after, idle=True):
        with book_open() as book:
            _intend(book, abort, targets)
            _look_later(abort, book.now + PATIENCE)
        after = targets[-1].position
    with book_open() as book:
        _look_note(book, abort, next_look=next_look)
    abort.refresh_from_db()
    return abort


def _look_later(abort: Abort, moment: datetime) -> None:
    """While this task is at a large set, the sweeper need not start another."""
    Abort.objects.filter(pk=abort.pk).exclude(state=Abort.Status.DONE).update(next_look=moment)


def _look_note(book: Book, abort: Abort, *, next_look: datetime | None) -> None:
    pending = AbortTarget.objects.filter(abort_id=abort.pk, outcome=Outcome.PENDING)
    is_due = book.now >= abort.deadline_at
    if is_due:
        pending.update(outcome=Outcome.UNCONFIRMED)
    is_first = abort.state == Abort.Status.ACCEPTED
    live = Abort.objects.filter(pk=abort.pk).exclude(state=Abort.Status.DONE)
    live.update(state=Abort.Status.IN_PROGRESS, next_look=next_look or book.now + PATIENCE)
    if is_first or is_due or not pending.exists():
        book.involve([abort.pk])


def aborts_to_resume(*, now: datetime | None = None, limit: int = 100) -> list[str]:
    """Ids of aborts whose next look is overdue: their task was lost. The oldest first."""
    moment = now or timezone.now()
    overdue = Abort.objects.exclude(state=Abort.Status.DONE).filter(next_look__lt=moment)
    return list(overdue.order_by("next_look").values_list("pk", flat=True)[:limit])
