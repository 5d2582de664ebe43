"""Carry an order to the ledger and, once that has committed, straight to the engines.

One way for REST and console alike. The ledger's task makes the stop certain; what is sent from
here only makes it quick.
"""

from __future__ import annotations

from accounts.callers import Caller
from adminapi.aborts.orders import AbortOrder
from gateway.stops import engines_tell
from inference.generation import AbortCause
from ledger.models import Abort
from ledger.services import abort_open


def stop(caller: Caller, order: AbortOrder, *, cause: AbortCause = AbortCause.API) -> Abort:
    """The abort, recorded. Never waits for an engine. Raises what `abort_open` raises."""
    abort = abort_open(
        caller=caller,
        ids=order.ids,
        everything=order.everything,
        filters=order.filters,
        reason=order.reason,
        dry_run=order.dry_run,
        tombstone=order.tombstone,
        fence=order.fence,
        idempotency_key=order.idempotency_key,
        body_digest=order.body_digest,
        cause=cause,
    )
    if not order.dry_run:
        engines_tell(abort)
    return abort
