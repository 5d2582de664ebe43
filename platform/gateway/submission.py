"""From an order to a mailbox: the record first, then the engine, and the record again if refused.

The row is committed as queued before the engine hears of it. Knows nothing of HTTP; `begin` runs
in a database thread, the rest in the event loop.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime

from accounts.callers import Caller
from gateway.database import in_database
from gateway.mailbox import Mailbox, mailbox_aborted
from gateway.orders import Order
from gateway.relay import Relay
from inference.errors import EngineLostError, HaltlineError, UnavailableError
from inference.generation import AbortCause
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey, Submit
from ledger import services
from ledger.models import InferenceRequest
from ledger.specs import SUBMIT_WITHIN, Placement

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request whose row is queued, and what its engine is to be told.

    `abort` is set where it ended as it arrived: no engine is told of it. `begun_at` is monotonic.
    """

    order: Order
    received_at: datetime
    placement: Placement
    message: Submit
    begun_at: float
    abort: AbortInfo | None = None

    @property
    def request_id(self) -> str:
        return self.message.key.request_id


def submission_begin(*, caller: Caller, order: Order, relay: Relay) -> Submission:
    """Place it and open its row. Raises what `Relay.place` and `request_open` raise."""
    placement, begun_at = relay.place(order.model), time.monotonic()
    row = services.request_open(caller=caller, spec=order.new_request(), placement=placement)
    key = RequestKey(row.pk, row.generation)
    return Submission(
        order=order,
        received_at=row.received_at,
        placement=placement,
        message=order.submission(key, owner=str(row.owner_id), priority=row.priority),
        begun_at=begun_at,
        abort=_abort_of(row),
    )


def _abort_of(row: InferenceRequest) -> AbortInfo | None:
    if row.is_live:
        return None
    cause = AbortCause(row.cause)
    return AbortInfo(id=row.abort_id or None, cause=cause, reason=row.reason or None)


async def submission_send(submission: Submission, *, relay: Relay) -> Mailbox:
    """Hand it over; returns once the engine has accepted it.

    Raises the error that the engine named, or that kept it from being asked, after it is in the
    record. A cancellation aborts the request.
    """
    if submission.abort is not None:
        return mailbox_aborted(submission.message, submission.abort)
    try:
        is_late = time.monotonic() - submission.begun_at > SUBMIT_WITHIN
        return await relay.submit(submission.placement, submission.message, is_late=is_late)
    except HaltlineError as error:
        error.request_id = submission.request_id
        error.param = submission.order.field_of(error.param)
        await _record_refusal(submission, error)
        raise


async def submission_abandon(submission: Submission, *, relay: Relay) -> None:
    """Its client left before it was sent: sent and aborted, it ends like any other."""
    try:
        mailbox = await submission_send(submission, relay=relay)
    except HaltlineError as error:
        logger.debug("%s was abandoned and refused: %s", submission.request_id, error)
    else:
        mailbox.close()


async def _record_refusal(submission: Submission, error: HaltlineError) -> None:
    """Only what this process alone knows, or knows for certain; events and sweeps tell the rest.

    After `EngineLostError` the relay has recorded the loss. An engine that did not answer was
    told to abort, and says itself what became of it.
    """
    if isinstance(error, EngineLostError) or type(error) is UnavailableError:
        return
    key = submission.message.key
    try:
        await in_database(
            services.request_advance,
            request_id=key.request_id,
            generation=key.generation,
            trigger=Trigger.REJECT,
            actor=f"web:{submission.placement.web}",
            fields={"error_code": error.code, "error_message": error.message},
        )
    except Exception:  # the client gets its answer whatever the database says; the sweep ends it
        logger.exception("the end of %s could not be recorded", key.request_id)
