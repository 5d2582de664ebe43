"""The life of a request as its own process writes it: opening it, and single steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.callers import Caller
from inference.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from inference.lifecycle import Trigger
from ledger.ids import client_id_check, request_id_new
from ledger.models import LIVE_STATES, Choice, InferenceRequest
from ledger.retention import content_is_kept
from ledger.services.book import book_open
from ledger.services.gates import fence_pass, tombstone_meet
from ledger.specs import NewRequest, Placement, Step
from ledger.storable import json_storable


def request_open(
    *, caller: Caller, spec: NewRequest, placement: Placement | None
) -> InferenceRequest:
    """A new request, queued at its placement; held where there is none yet. One transaction.

    Once this returns, a queued request may be submitted to that engine: not before, and within
    `SUBMIT_WITHIN` seconds or not at all. One whose id lies under a tombstone comes back
    aborted. Raises `ConflictError` if the client id is in use, `InvalidRequestError` for one that
    may not be used, `PermissionDeniedError` for a caller without an owner, `FencedError` while no
    new work is admitted.
    """
    step = _placed(placement, caller.actor) if placement else _held(caller.actor)
    return _opened(caller, spec, step)


def request_receive(*, caller: Caller, spec: NewRequest) -> InferenceRequest:
    """A new request that a task is to place: received, and held by nobody.

    Otherwise as `request_open`.
    """
    return _opened(caller, spec, None)


def _opened(caller: Caller, spec: NewRequest, step: Step | None) -> InferenceRequest:
    is_placed = step is not None and step.trigger is Trigger.ENQUEUE
    row = _row(caller, spec, keeps_prompt=content_is_kept() or not is_placed)
    try:
        with book_open() as book:
            fence_pass()
            book.add(row, actor=caller.actor)
            if step is not None:
                book.advance(row, step)
    except IntegrityError as problem:
        if not _is_in_use(row):
            raise
        raise ConflictError(
            f"a live request already has the id {spec.client_id!r}", param="request_id"
        ) from problem
    tombstone_meet(row)
    return row


def _row(caller: Caller, spec: NewRequest, *, keeps_prompt: bool) -> InferenceRequest:
    """Whoever places it later needs its prompt until then."""
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
        prompt=json_storable(spec.prompt) if keeps_prompt else [],
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


def request_accepted(*, request_id: str, generation: int, prompt_tokens: int) -> None:
    """An engine has taken it, and counted its prompt. No step: the request waits as before."""
    with book_open() as book:
        row = book.lock([request_id]).get(request_id)
        if row is not None and row.generation == generation and row.is_live:
            book.set(row, prompt_token_count=max(prompt_tokens, row.prompt_token_count))


def content_erase(*, request_id: str) -> bool:
    """Forget what was asked and answered, and keep the bare record: who, when, how much, how.

    An erased request has no prompt. False, and nothing erased, while it is live.
    """
    with transaction.atomic():
        ended = InferenceRequest.objects.exclude(state__in=LIVE_STATES).filter(pk=request_id)
        if not ended.update(prompt=[]):
            return False
        nothing: dict[str, Any] = {
            "text": "",
            "token_ids": [],
            "logprobs": None,
            "stop_reason": None,
        }
        Choice.objects.filter(request_id=request_id).update(**nothing)
        return True
