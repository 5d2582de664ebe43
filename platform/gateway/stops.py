"""Tell the engines of an abort that is recorded, and stop one request in that way.

The ledger's task makes a stop certain; what is sent from here only makes it quick.
"""

from __future__ import annotations

from accounts.callers import Caller
from gateway.relay import relay_abort_soon
from inference.generation import AbortCause
from inference.wire import AbortInfo
from ledger.models import Abort, InferenceRequest
from ledger.services import abort_holders, abort_open


def request_stop(*, caller: Caller, row: InferenceRequest) -> None:
    """Safe to repeat. Never waits for an engine. Raises what `abort_open` raises."""
    if row.is_live:
        engines_tell(abort_open(caller=caller, ids=[row.pk]))


def engines_tell(abort: Abort) -> None:
    """Over this process's own links; from any thread, without waiting."""
    keys = {replica: found for (replica, _), found in abort_holders(abort=abort).items()}
    if keys:
        info = AbortInfo(id=abort.pk, cause=AbortCause(abort.cause), reason=abort.reason or None)
        relay_abort_soon(keys, info)
