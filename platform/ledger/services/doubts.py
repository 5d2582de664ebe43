"""Work that is silent: does its engine have it at all? If not, it ends here, once that is sure.

A web process may die after its row is queued and before it submits; an event may be lost with a
full buffer. Neither tells anybody. So rows that nothing has happened to for a while are asked
about, and end when their engine, alive and of the same epoch, does not know them on two looks.

Why this cannot contradict the engine: nobody submits later than `SUBMIT_WITHIN` after queueing,
which is over when the first question is asked. Each question ends in an `Abort` of what is
missing, and an engine that does not know a key keeps that for a minute: a submission that was
still under way arrives as aborted, with no token, as it is written here. Between the two looks,
what the engine had told before the first is recorded: events and these tasks share a queue. An
engine remembers what ended for `ENGINE_REMEMBERS`; only if it was first asked within that time,
"unknown" means "never was", and otherwise the end is called lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q
from django.utils import timezone

from inference.errors import EngineLostError, UnavailableError
from inference.generation import AbortCause
from inference.lifecycle import DISPATCHED, State, Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import InferenceRequest, Replica
from ledger.services.book import Book, book_open
from ledger.specs import SUBMIT_WITHIN, Step

SILENT_FOR = timedelta(seconds=SUBMIT_WITHIN + 10)
ASK_AGAIN = timedelta(seconds=60)
SURE_AFTER = timedelta(seconds=30)
ENGINE_REMEMBERS = timedelta(seconds=300)
AT_ONCE = 200

_NEVER_CAME = "The request never reached its engine."
_END_LOST = "The engine does not know this request any more; how it ended is not known."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to ask one engine: whether it has these. `why`: what to tell it of those it has not."""

    replica: str
    epoch: str
    url: str
    why: Mapping[RequestKey, AbortInfo]


def requests_doubtful(*, now: datetime | None = None) -> list[Question]:
    """One question per replica that lives, about at most `AT_ONCE` silent requests each.

    Noted as asked, so that the next call brings others.
    """
    moment = now or timezone.now()
    living = Replica.objects.filter(state=Replica.State.RUNNING).exclude(bus_url="")
    questions = [_question(replica, moment) for replica in living.order_by("pk")]
    return [question for question in questions if question.why]


def _question(replica: Replica, now: datetime) -> Question:
    held = sorted(state.value for state in DISPATCHED | {State.ABORTING})
    silent = InferenceRequest.objects.filter(
        replica=replica.pk, epoch=replica.epoch, state__in=held, changed_at__lt=now - SILENT_FOR
    )
    due = Q(asked_at=None) | Q(asked_at__lt=now - ASK_AGAIN)
    due |= Q(unknown_at__lt=now - SURE_AFTER, asked_at__lt=now - SURE_AFTER)
    oldest = silent.filter(due).order_by(F("asked_at").asc(nulls_first=True), "pk")
    rows = list(oldest.only("generation", "cause", "reason", "abort_id")[:AT_ONCE])
    InferenceRequest.objects.filter(pk__in=[row.pk for row in rows]).update(asked_at=now)
    why = {RequestKey(row.pk, row.generation): _why(row) for row in rows}
    return Question(replica=replica.pk, epoch=replica.epoch, url=replica.bus_url, why=why)


def _why(row: InferenceRequest) -> AbortInfo:
    """Of its own abort, if there is one; else its client's web process must be gone."""
    cause = AbortCause(row.cause) if row.cause else AbortCause.CLIENT_DISCONNECTED
    return AbortInfo(id=row.abort_id or None, cause=cause, reason=row.reason or None)


def requests_answered(
    *,
    question: Question,
    unknown: Collection[RequestKey],
    ended: Collection[RequestKey] = (),
    now: datetime | None = None,
) -> int:
    """What the engine said: of which it knows nothing, and which have ended there. How many end.

    All others it has. One that has ended will be told of; if that event is lost, it is unknown
    before long.
    """
    moment = now or timezone.now()
    keys = question.why.keys()
    _note_known(question, keys - set(unknown) - set(ended))
    with book_open() as book:
        rows = _rows(book, question, [key for key in keys if key in set(unknown)])
        return sum(_unknown(book, row, moment) for row in rows)


def _note_known(question: Question, keys: Iterable[RequestKey]) -> None:
    doubted = InferenceRequest.objects.exclude(unknown_at=None)
    ids = [key.request_id for key in keys]
    doubted.filter(pk__in=ids, epoch=question.epoch).update(unknown_at=None)


def _rows(book: Book, question: Question, keys: list[RequestKey]) -> list[InferenceRequest]:
    """Those that are still what was asked about."""
    held = Q(replica=question.replica, epoch=question.epoch)
    rows = book.lock([key.request_id for key in keys], held)
    generations = {key.request_id: key.generation for key in keys}
    return [row for row in rows.values() if row.generation == generations[row.pk] and row.is_live]


def _unknown(book: Book, row: InferenceRequest, now: datetime) -> bool:
    if row.unknown_at is None or row.unknown_at < row.changed_at:
        book.set(row, unknown_at=now)
        return False
    if now - row.unknown_at < SURE_AFTER:
        return False
    return book.advance(row, _end_of(row))


def _end_of(row: InferenceRequest) -> Step:
    actor = f"replica:{row.replica}"
    if not _never_was(row):
        return _failure(actor, EngineLostError.code, _END_LOST)
    if row.state == State.ABORTING:
        return Step(trigger=Trigger.ABORT_CONFIRM, actor=actor, detail={"never_submitted": True})
    return _failure(actor, UnavailableError.code, _NEVER_CAME)


def _never_was(row: InferenceRequest) -> bool:
    """It told nothing, and was asked about before an engine forgets what it had."""
    since, first_asked = row.queued_at, row.unknown_at
    if row.engine_seq > 0 or since is None or first_asked is None:
        return False
    return first_asked - since < ENGINE_REMEMBERS


def _failure(actor: str, code: str, message: str) -> Step:
    fields = {"error_code": code, "error_message": message}
    return Step(trigger=Trigger.FAIL, actor=actor, fields=fields)
