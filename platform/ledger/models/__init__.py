"""The durable record: requests, their choices and transitions, aborts and receipts, replicas.

Rows only. States are written by `ledger.services.book` alone, everything else by the other
services; reads are in `ledger.selectors`. `Change.id` is the one cursor of all watchers.
"""

from __future__ import annotations

from ledger.models.aborts import Abort, AbortTarget
from ledger.models.gates import Fence, Tombstone
from ledger.models.requests import LIVE_STATES, Choice, InferenceRequest, Transition
from ledger.models.watch import Change, Replica

__all__ = [
    "LIVE_STATES",
    "Abort",
    "AbortTarget",
    "Change",
    "Choice",
    "Fence",
    "InferenceRequest",
    "Replica",
    "Tombstone",
    "Transition",
]
