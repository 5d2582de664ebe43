"""Celery tasks: ids in, one service call each.

None of them waits: each acts, and where it must look again, it schedules its own next look.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from inference.bus.client import abort as bus_abort
from inference.errors import WireError
from inference.events import beat_from_json, events_from_json
from inference.generation import AbortCause
from inference.wire import AbortInfo, RequestKey
from ledger import services
from ledger.counters import count
from ledger.enqueue import abort_carry_out_soon
from ledger.models import Abort
from ledger.services.aborts import PATIENCE
from ledger.specs import EventsRecorded

logger = logging.getLogger(__name__)

_FIRST_LOOK = 0.25
_LONGEST_PAUSE = 2.0
_BUS_TIMEOUT = 5.0


@shared_task
def events_record(batch: Any) -> None:
    """What engines told. A batch that is none is counted and logged, and never comes again."""
    try:
        events = events_from_json(batch)
    except WireError as problem:
        count("events_malformed")
        logger.warning("events: %s", problem)
        return
    count_recorded(services.events_record(events=events))


def count_recorded(recorded: EventsRecorded) -> None:
    for name in ("applied", "duplicates", "late", "unknown", "gaps"):
        count(f"events_{name}", getattr(recorded, name))


@shared_task
def replica_beat(data: Any) -> None:
    try:
        beat = beat_from_json(data)
    except WireError as problem:
        count("beats_malformed")
        logger.warning("heartbeat: %s", problem)
        return
    services.replica_beat_record(beat=beat)


@shared_task
def abort_carry_out(abort_id: str, attempt: int = 0) -> None:
    """Tell every holder, and look again until each target has an outcome."""
    pause = min(_FIRST_LOOK * 2**attempt, _LONGEST_PAUSE)
    next_look = timezone.now() + timedelta(seconds=pause) + PATIENCE
    abort = services.abort_review(abort_id=abort_id, next_look=next_look)
    if abort is None or abort.state == Abort.Status.DONE:
        return
    for (replica, url), keys in services.abort_holders(abort=abort).items():
        if url is not None:
            _tell(abort, replica, url, keys)
    abort_carry_out_soon(abort_id, attempt=min(attempt + 1, 8), after=pause)


def _tell(abort: Abort, replica: str, url: str, keys: list[RequestKey]) -> None:
    """An engine that does not answer is told again at the next look."""
    info = AbortInfo(id=abort.pk, cause=AbortCause(abort.cause), reason=abort.reason or None)
    try:
        bus_abort(
            url, keys=keys, info=info, secret=settings.HALTLINE_BUS_SECRET, timeout=_BUS_TIMEOUT
        )
    except (ConnectionError, OSError) as problem:
        count("abort_sends_failed")
        logger.warning("abort %s: replica %s: %s", abort.pk, replica, problem)


@shared_task
def requests_sweep() -> None:
    """End what replicas that fell silent held."""
    services.replicas_silent()


@shared_task
def aborts_sweep() -> None:
    """Start the aborts again whose task was lost."""
    for abort_id in services.aborts_to_resume():
        abort_carry_out_soon(abort_id, attempt=3)
