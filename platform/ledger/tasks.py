"""Celery tasks: ids in, one service call each.

None of them waits: each acts, and where it must look again, it schedules its own next look.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import timedelta
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from inference.bus.client import abort as bus_abort
from inference.bus.client import missing as bus_missing
from inference.errors import WireError
from inference.events import beat_from_json, events_from_json
from inference.generation import AbortCause
from inference.wire import AbortInfo, ReleaseOutcome, RequestKey
from ledger import services
from ledger.counters import count
from ledger.enqueue import abort_carry_out_soon
from ledger.models import Abort
from ledger.services.aborts import PATIENCE
from ledger.services.doubts import Question
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
    """End what replicas that fell silent held, and what nobody places again."""
    services.replicas_silent()
    services.requests_stranded()


@shared_task
def requests_ask() -> None:
    """Ask each engine about work that has been silent, and end what it does not know."""
    for question in services.requests_doubtful():
        try:
            unknown, ended = _ask(question)
        except (ConnectionError, OSError) as problem:
            count("questions_failed")
            logger.warning("replica %s could not be asked: %s", question.replica, problem)
        else:
            ended_here = services.requests_answered(question=question, unknown=unknown, ended=ended)
            count("requests_never_there", ended_here)


def _ask(question: Question) -> tuple[set[RequestKey], set[RequestKey]]:
    """What the engine does not know, and what has ended there. Raises `ConnectionError`.

    What it does not know it is told to abort, should it come after all.
    """
    secret, url = settings.HALTLINE_BUS_SECRET, question.url
    epoch, missing = bus_missing(url, keys=[*question.why], secret=secret, timeout=_BUS_TIMEOUT)
    if epoch != question.epoch:
        raise ConnectionError("it is another engine by now")
    outcomes: dict[ReleaseOutcome, set[RequestKey]] = defaultdict(set)
    for why, keys in _by_reason(question, missing).items():
        for release in bus_abort(url, keys=keys, info=why, secret=secret, timeout=_BUS_TIMEOUT):
            outcomes[release.outcome].add(release.key)
    return outcomes[ReleaseOutcome.UNKNOWN], outcomes[ReleaseOutcome.ENDED]


def _by_reason(question: Question, keys: set[RequestKey]) -> dict[AbortInfo, list[RequestKey]]:
    found: dict[AbortInfo, list[RequestKey]] = defaultdict(list)
    for key in keys & question.why.keys():
        found[question.why[key]].append(key)
    return found


@shared_task
def aborts_sweep() -> None:
    """Start the aborts again whose task was lost, and forget tombstones whose time is over."""
    for abort_id in services.aborts_to_resume():
        abort_carry_out_soon(abort_id, attempt=3)
    services.tombstones_purge()
