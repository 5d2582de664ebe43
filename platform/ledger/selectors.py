"""Reads of the record, within a caller's sight. They write nothing and take no locks.

What a caller may not see is the same as what never was: `NotFoundError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.lookups import Exact
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import NotFoundError, QueueDeadlineError
from inference.generation import AbortCause
from inference.lifecycle import State
from ledger.ids import internal_id
from ledger.models import (
    LIVE_STATES,
    Abort,
    AbortTarget,
    Change,
    Choice,
    InferenceRequest,
    Replica,
    Transition,
)
from ledger.representations import abort_json
from ledger.specs import RequestFilter, Resolved

TARGETS_SHOWN = 1000
_AT_ONCE = 300


def requests_of(caller: Caller) -> QuerySet[InferenceRequest]:
    """Every request that the caller may see, newest first, with its owner."""
    found = InferenceRequest.objects.select_related("owner")
    return found if caller.sees_all else found.filter(owned_by(caller))


def owned_by(caller: Caller) -> Q:
    """What belongs to the caller's owner; nothing for a caller without one."""
    return Q(owner_id=caller.owner_id) if caller.owner_id is not None else Q(pk__in=())


def requests_visible(
    *, caller: Caller, filters: RequestFilter | None = None
) -> QuerySet[InferenceRequest]:
    found = requests_of(caller)
    return found.filter(condition_of(filters)) if filters is not None else found


def condition_of(filters: RequestFilter) -> Q:
    """What a request must be to pass; empty where nothing is asked."""
    pairs: dict[str, Any] = {
        "state": filters.state,
        "owner__name": filters.owner,
        "model": filters.model,
        "received_at__gte": filters.since,
        "received_at__lt": filters.until,
    }
    found = Q(**{name: value for name, value in pairs.items() if value is not None})
    if filters.cause is not None:
        found &= _ended_by(filters.cause)
    if filters.older_than is not None:
        found &= Q(received_at__lt=timezone.now() - timedelta(seconds=filters.older_than))
    for key, value in filters.metadata.items():
        found &= Q(Exact(KeyTextTransform(key, "metadata"), Value(value)))
    return found


def _ended_by(cause: str) -> Q:
    """As `representations.request_cause` tells it: an abort's cause, or else an error's code."""
    if cause in set(AbortCause):
        return Q(cause=cause)
    found = Q(error_code=cause)
    if cause == QueueDeadlineError.code:
        found |= Q(error_code="", state=State.EXPIRED)
    return Q(cause="") & found


def request_get(*, caller: Caller, any_id: str) -> InferenceRequest:
    """By internal, response or client id. Raises `NotFoundError`, for a stranger's too."""
    resolved = requests_resolve(caller=caller, requested_ids=[any_id])[0]
    if resolved.request_id is None:
        raise NotFoundError(f"there is no request {any_id!r}")
    return requests_of(caller).get(pk=resolved.request_id)


def requests_resolve(
    *, caller: Caller, requested_ids: Iterable[str], everyone: bool | None = None
) -> list[Resolved]:
    """What each id stands for within the caller's sight, in the order asked.

    A client id names the owner's live request before its newest ended one; for a caller that
    reaches everyone's (`everyone`, by default one who sees all) also another owner's if exactly
    one live request bears it.
    """
    asked = list(requested_ids)
    reach = caller.sees_all if everyone is None else everyone
    found = {**_by_internal(caller, asked, reach=reach)}
    named = [one for one in asked if one not in found and internal_id(one) is None]
    found |= _by_client_id(caller, named, reach=reach)
    return [found.get(one) or Resolved(requested_id=one) for one in asked]


def _by_internal(caller: Caller, asked: list[str], *, reach: bool) -> dict[str, Resolved]:
    ours = {one: inner for one in asked if (inner := internal_id(one)) is not None}
    seen = InferenceRequest.objects.all()
    seen = seen if reach else seen.filter(owned_by(caller))
    rows: set[str] = set()
    for some in _chunks(sorted(set(ours.values()))):
        rows.update(seen.filter(pk__in=some).values_list("pk", flat=True))
    return {
        one: Resolved(requested_id=one, request_id=inner)
        for one, inner in ours.items()
        if inner in rows
    }


def _by_client_id(caller: Caller, named: list[str], *, reach: bool) -> dict[str, Resolved]:
    own: dict[str, str] = {}
    foreign: dict[str, list[str]] = {}
    words = {one for one in named if "\x00" not in one}  # PostgreSQL refuses to look for NUL
    for some in _chunks(sorted(words)):
        rows = InferenceRequest.objects.filter(client_id__in=some).order_by("received_at", "pk")
        mine = rows.filter(owned_by(caller)).values_list("client_id", "pk", "state")
        # The last one written wins: ended before live, older before newer.
        by_life = sorted(mine, key=lambda row: row[2] in LIVE_STATES)
        own |= {client_id: pk for client_id, pk, _ in by_life}
        if reach:
            others = rows.exclude(owned_by(caller)).filter(state__in=LIVE_STATES)
            for client_id, pk in others.values_list("client_id", "pk"):
                foreign.setdefault(client_id, []).append(pk)
    return {one: _resolved(one, own.get(one), foreign.get(one, [])) for one in named}


def _resolved(requested_id: str, own: str | None, foreign: list[str]) -> Resolved:
    if own is not None or not foreign:
        return Resolved(requested_id=requested_id, request_id=own)
    if len(foreign) > 1:
        return Resolved(requested_id=requested_id, detail="ambiguous")
    return Resolved(requested_id=requested_id, request_id=foreign[0])


def _chunks(items: list[str]) -> Iterable[list[str]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def choices_of(*, request_id: str) -> QuerySet[Choice]:
    return Choice.objects.filter(request_id=request_id).order_by("index")


def transitions_of(*, request_id: str, after: int = 0) -> QuerySet[Transition]:
    """In order, those after number `after`."""
    return Transition.objects.filter(request_id=request_id, seq__gt=after).order_by("seq")


def aborts_visible(*, caller: Caller) -> QuerySet[Abort]:
    found = Abort.objects.select_related("owner")
    if caller.sees_aborts:
        return found
    if caller.owner_id is None:
        return found.filter(requested_by=caller.actor)
    return found.filter(owner_id=caller.owner_id)


def abort_get(*, caller: Caller, abort_id: str) -> Abort:
    """Raises `NotFoundError`, for a stranger's too."""
    found = None
    if "\x00" not in abort_id:  # PostgreSQL refuses to look for NUL
        found = aborts_visible(caller=caller).filter(pk=abort_id).first()
    if found is None:
        raise NotFoundError(f"there is no abort {abort_id!r}")
    return found


def abort_targets(
    *, abort_id: str, after: int = -1, limit: int = TARGETS_SHOWN
) -> list[AbortTarget]:
    """At most `limit` targets in their order, those after position `after`."""
    found = AbortTarget.objects.filter(abort_id=abort_id, position__gt=after)
    return list(found.order_by("position")[:limit])


def abort_counts(*, abort_id: str) -> dict[str, int]:
    """Targets by outcome, all of them; `targets` is their number."""
    rows = AbortTarget.objects.filter(abort_id=abort_id).values_list("outcome").order_by("outcome")
    by_outcome = dict(rows.annotate(found=Count("pk")))
    counts = {outcome: by_outcome.get(outcome, 0) for outcome in AbortTarget.Outcome.values}
    return {"targets": sum(by_outcome.values()), **counts}


def abort_receipt(*, abort: Abort, after: int = -1, limit: int = TARGETS_SHOWN) -> dict[str, Any]:
    """The receipt as JSON, with at most `limit` targets, those after position `after`.

    Of a dry run: what would be meant, under no id.
    """
    if abort.preview is not None:
        return _preview_json(abort)
    targets = abort_targets(abort_id=abort.pk, after=after, limit=limit + 1)
    shown = targets[:limit]
    return abort_json(
        abort,
        counts=abort_counts(abort_id=abort.pk),
        targets=shown,
        choices=_choices_by_request(shown),
        targets_next=str(shown[-1].position) if len(targets) > len(shown) else None,
    )


def _preview_json(abort: Abort) -> dict[str, Any]:
    shown = list(abort.preview or ())[:TARGETS_SHOWN]
    receipt = abort_json(abort, counts=abort.preview_counts, targets=shown, choices={})
    return {**receipt, "id": None, "dry_run": True}


def _choices_by_request(targets: list[AbortTarget]) -> dict[str, list[Choice]]:
    ids = sorted({one.request_id for one in targets if one.request_id})
    found: dict[str, list[Choice]] = {}
    for some in _chunks(ids):
        rows = Choice.objects.filter(request_id__in=some).only(
            "request_id", "index", "output_token_count"
        )
        for choice in rows.order_by("request_id", "index"):
            found.setdefault(choice.request_id, []).append(choice)
    return found


def replicas_all() -> QuerySet[Replica]:
    return Replica.objects.order_by("pk")


def cursor_now() -> int:
    """The newest visible change; 0 before the first."""
    return Change.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def changes_after(
    *, cursor: int, limit: int = 500, kind: str | None = None, object_id: str | None = None
) -> list[Change]:
    """The oldest `limit` changes after a cursor, in order; of one object where it is named."""
    found = Change.objects.filter(pk__gt=cursor)
    if kind is not None:
        found = found.filter(kind=kind)
    if object_id is not None:
        found = found.filter(object_id=object_id)
    return list(found.order_by("pk")[:limit])
