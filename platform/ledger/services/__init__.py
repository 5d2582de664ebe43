"""Writes of the record. One service per act, keyword-only; states change in `book` alone."""

from __future__ import annotations

from ledger.services.aborts import (
    abort_holders,
    abort_open,
    abort_review,
    aborts_to_resume,
)
from ledger.services.events import events_record
from ledger.services.replicas import replica_beat_record, replicas_silent, requests_lose
from ledger.services.requests import request_advance, request_open, requests_advance

__all__ = [
    "abort_holders",
    "abort_open",
    "abort_review",
    "aborts_to_resume",
    "events_record",
    "replica_beat_record",
    "replicas_silent",
    "request_advance",
    "request_open",
    "requests_advance",
    "requests_lose",
]
