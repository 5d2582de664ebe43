"""The life of a request as its own process writes it: opening it, and single steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from inference.lifecycle import Trigger
from ledger.ids import client_id_check, request_id_new
from ledger.models import LIVE_STATES, InferenceRequest
from ledger.services.book import book_open
from ledger.specs import NewRequest, Placement, Step
from ledger.storable import json_storable


def request_open(
    *, caller: Caller, spec: NewRequest, placement: Placement | None
) -> InferenceRequest:
    """A new request, queued at its placement; held where there is none yet. One transaction.

    Once this returns, the request may be submitted to that engine: not before, and not if an
    abort has meanwhile moved it on. Raises `ConflictError` if the client id is in use,
    `InvalidRequestError` for one that may not be used, `PermissionDeniedError` for a caller
    without an owner.
    """
    row = _row(caller, spec)
    step = _placed(placement, caller.actor) if placement else _held(caller.actor)
    try:
        with book_open() as book:
            book.add(row, actor=caller.actor)
            book.advance(row, step)
    except IntegrityError as problem:
        if not _is_in_use(row):
            raise
        raise ConflictError(
            f"a live request already has the id {spec.client_id!r}", param="request_id"
        ) from problem
    return row


def _row(caller: Caller, spec: NewRequest) -> InferenceRequest:
    if caller.owner_id is None:
        raise PermissionDeniedError("only a key or user that belongs to an owner may submit")
    if spec.choice_count < 1:
        raise InvalidRequestError("a request has at least one choice", param="n")
    now = timezone.now()
    return InferenceRequest(
        id=request_id_new(),
        owner_id=caller.owner_id,
        submitted_by=caller.actor,
        client_id=client_id_check(spec.client_id) if spec.client_id else "",
        kind=spec.kind,
        model=spec.model,
        params=json_storable(spec.params),
        prompt=json_storable(spec.prompt),
        metadata=json_storable(spec.metadata),
        stream=spec.stream,
        priority=min(spec.priority, caller.max_priority),
        n=spec.n,
        choice_count=spec.choice_count,
        received_at=now,
        deadline_at=_after(now, spec.deadline),
        queue_deadline_at=_after(now, spec.queue_deadline),
    )


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return now + timedelta(seconds=seconds) if seconds is not None else None


def _placed(placement: Placement, actor: str) -> Step:
    fields = {"replica": placement.replica, "epoch": placement.epoch, "web": placement.web}
    return Step(trigger=Trigger.ENQUEUE, actor=actor, fields=fields)


def _held(actor: str) -> Step:
    return Step(trigger=Trigger.HOLD, actor=actor)


def _is_in_use(row: InferenceRequest) -> bool:
    bearers = InferenceRequest.objects.filter(owner_id=row.owner_id, client_id=row.client_id)
    return row.client_id != "" and bearers.filter(state__in=LIVE_STATES).exists()


def request_advance(
    *,
    request_id: str,
    generation: int,
    trigger: Trigger,
    actor: str,
    at: datetime | None = None,
    detail: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> bool:
    """Take one step, with its numbered transition; at an end, choices and abort targets too.

    `fields`: further columns for the same write. False, and nothing written, where the request
    is unknown, of another generation, or in a state in which the trigger does not apply.
    """
    step = Step(trigger=trigger, actor=actor, at=at, detail=detail or {}, fields=fields or {})
    with book_open() as book:
        row = book.lock([request_id]).get(request_id)
        if row is None or row.generation != generation:
            return False
        return book.advance(row, step)


def requests_advance(*, keys: Iterable[tuple[str, int]], step: Step) -> list[str]:
    """The same step for many (request id, generation), in one transaction.

    The ids for which it applied. Give at most some hundreds at once: the rows stay locked.
    """
    generations = dict(keys)
    with book_open() as book:
        rows = [
            row
            for pk, row in book.lock(generations).items()
            if row.generation == generations.get(pk)
        ]
        return [row.pk for row in rows if book.advance(row, step)]
