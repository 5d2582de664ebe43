"""Writes of the record. One service per act, keyword-only; states change in `book` alone."""

from __future__ import annotations

from ledger.services.aborts import (
    abort_holders,
    abort_open,
    abort_review,
    aborts_to_resume,
)
from ledger.services.doubts import requests_answered, requests_doubtful
from ledger.services.events import events_record
from ledger.services.gates import fence_lift, tombstones_purge
from ledger.services.replicas import replica_beat_record, replicas_silent, requests_lose
from ledger.services.requests import (
    content_erase,
    request_accepted,
    request_advance,
    request_open,
    request_receive,
    requests_advance,
)
from ledger.services.requeue import requests_requeue, requests_stranded

__all__ = [
    "abort_holders",
    "abort_open",
    "abort_review",
    "aborts_to_resume",
    "content_erase",
    "events_record",
    "fence_lift",
    "replica_beat_record",
    "replicas_silent",
    "request_accepted",
    "request_advance",
    "request_open",
    "request_receive",
    "requests_advance",
    "requests_answered",
    "requests_doubtful",
    "requests_lose",
    "requests_requeue",
    "requests_stranded",
    "tombstones_purge",
]
