"""Carry an order to the ledger and, once that has committed, straight to the engines.

One way for REST and console alike. The ledger's task makes the stop certain; what is sent from
here only makes it quick.
"""

from __future__ import annotations

from accounts.callers import Caller
from adminapi.aborts.orders import AbortOrder
from gateway.relay import relay_abort_soon
from inference.errors import InvalidRequestError
from inference.generation import AbortCause
from inference.wire import AbortInfo
from ledger.models import Abort
from ledger.services import abort_holders, abort_open


def stop(caller: Caller, order: AbortOrder, *, cause: AbortCause = AbortCause.API) -> Abort:
    """The abort, recorded. Never waits for an engine. Raises what `abort_open` raises."""
    _check_support(order)
    abort = abort_open(
        caller=caller,
        ids=order.ids,
        everything=order.everything,
        filters=order.filters,
        reason=order.reason,
        dry_run=order.dry_run,
        idempotency_key=order.idempotency_key,
        body_digest=order.body_digest,
        cause=cause,
    )
    if not order.dry_run:
        _tell_engines(abort)
    return abort


def _tell_engines(abort: Abort) -> None:
    keys = {replica: found for (replica, _), found in abort_holders(abort=abort).items()}
    if keys:
        info = AbortInfo(id=abort.pk, cause=AbortCause(abort.cause), reason=abort.reason or None)
        relay_abort_soon(keys, info)


def _check_support(order: AbortOrder) -> None:
    """A promise that the ledger cannot keep is refused, not forgotten."""
    if order.tombstone is not None:
        raise InvalidRequestError("Tombstones are not supported yet.", param="tombstone")
    if order.fence:
        raise InvalidRequestError("Fences are not supported yet.", param="fence")
