"""Responses as the record has them: found by any id, shown, and erased. In database threads.

One whose content is not kept, because its client, the server or a deletion says so, is shown to
nobody; its bare record stays.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings

from accounts.callers import Caller
from gateway.api.responses_objects import Frame, status_of_state
from gateway.orders import Order
from gateway.outcomes import outcome_of_record
from inference.errors import NotFoundError
from inference.lifecycle import State
from ledger.ids import response_id
from ledger.models import Choice, InferenceRequest
from ledger.selectors import request_get

KIND = InferenceRequest.Kind.RESPONSE.value


def response_find(*, caller: Caller, any_id: str) -> InferenceRequest:
    """Kept or not. Raises `NotFoundError`, for a stranger's too, and for what is no response."""
    row = request_get(caller=caller, any_id=any_id)
    if row.kind != KIND:
        raise NotFoundError(f"there is no response {any_id!r}")
    return row


def response_get(*, caller: Caller, any_id: str) -> InferenceRequest:
    """Raises `NotFoundError` also for one that is not kept."""
    row = response_find(caller=caller, any_id=any_id)
    if not is_kept(row):
        raise NotFoundError(f"the response {any_id!r} is not kept")
    return row


def is_kept(row: InferenceRequest) -> bool:
    """An erased request has no prompt any more; every other has one."""
    asked = row.params.get("store", True)
    return bool(asked and row.prompt) and settings.HALTLINE_RETENTION_DAYS > 0


def frame_of_order(order: Order, *, request_id: str, created: int) -> Frame:
    return Frame(
        response_id=response_id(request_id, KIND),
        created=created,
        model=order.model,
        fields=order.fields,
    )


def frame_of(row: InferenceRequest) -> Frame:
    asked = row.prompt[0] if row.prompt else {}
    return Frame(
        response_id=response_id(row.pk, KIND),
        created=int(row.received_at.timestamp()),
        model=row.model,
        fields={**row.params, "metadata": row.metadata, **asked},
    )


def response_json(request_id: str) -> dict[str, Any]:
    """As it stands. Raises `NotFoundError` for a record that is gone."""
    row = InferenceRequest.objects.filter(pk=request_id).first()
    if row is None:
        raise NotFoundError
    frame = frame_of(row)
    if row.is_live:
        return frame.live(status_of_state(State(row.state)))
    choice = Choice.objects.get(request=row, index=0)
    return frame.ended(outcome_of_record(row, choice), choice.text)
