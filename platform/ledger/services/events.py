"""Recording what engines tell: right under duplicates, in any order, and after the end.

Each event repeats the request's timeline from its beginning, so the newest that is recorded
says it all; what the record already has is skipped, and nothing follows an end.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from inference.events import RequestEvent, TimelineEntry
from inference.generation import FinishReason
from inference.lifecycle import TRANSITIONS, State, Trigger
from ledger.models import Choice, InferenceRequest
from ledger.services.book import AT_ONCE, ENGINE_ACTOR, Book, book_open
from ledger.services.ending import LONGEST_CODE
from ledger.specs import EventsRecorded, Step
from ledger.storable import json_storable, text_storable

_ENDS = {Trigger.FINISH, Trigger.ABORT_CONFIRM, Trigger.FAIL, Trigger.EXPIRE, Trigger.REJECT}


def events_record(*, events: list[RequestEvent]) -> EventsRecorded:
    """Record a batch, in transactions of at most some hundreds of events.

    `late`: for a request that has ended, another generation or another epoch of the engine;
    `gaps`: a timeline that does not join what is recorded. Both change nothing.
    """
    counts: Counter[str] = Counter()
    for start in range(0, len(events), AT_ONCE):
        counts.update(_record(events[start : start + AT_ONCE]))
    return EventsRecorded(**counts)


def _record(events: list[RequestEvent]) -> Counter[str]:
    with book_open() as book:
        rows = book.lock(event.key.request_id for event in events)
        known = {event.key.request_id for event in events} & rows.keys()
        book.load_choices(rows[pk] for pk in known if rows[pk].is_live)
        return Counter(_event(book, rows.get(event.key.request_id), event) for event in events)


def _event(book: Book, row: InferenceRequest | None, event: RequestEvent) -> str:
    """Record one event; what became of it, as a field of `EventsRecorded`."""
    if row is None:
        return "unknown"
    if row.generation != event.key.generation or row.epoch != event.epoch:
        return "late"
    fresh = [entry for entry in event.timeline if entry.seq > row.engine_seq]
    if not fresh:
        return "duplicates"
    if not row.is_live:
        return "late"
    if [entry.seq for entry in fresh] != list(
        range(row.engine_seq + 1, row.engine_seq + 1 + len(fresh))
    ):
        return "gaps"
    _timeline(book, row, event, fresh)
    return "applied"


def _timeline(
    book: Book, row: InferenceRequest, event: RequestEvent, fresh: list[TimelineEntry]
) -> None:
    book.set(row, engine_seq=fresh[-1].seq, **_measures(event))
    actor = f"{ENGINE_ACTOR}{event.replica}"
    for entry in fresh:
        at = datetime.fromtimestamp(entry.at, UTC)
        if entry.first_token_at is not None and row.first_token_at is None:
            first = datetime.fromtimestamp(entry.first_token_at, UTC)
            book.set(row, first_token_at=max(first, row.received_at))
        if entry.choice_end is not None:
            book.end_choice(row, entry.choice_end, actor=actor, at=at)
        if entry.trigger is not None:
            _step(book, row, entry, entry.trigger, actor=actor, at=at)


def _measures(event: RequestEvent) -> dict[str, Any]:
    return {
        "prompt_token_count": event.prompt_tokens,
        "cached_prompt_token_count": event.cached_prompt_tokens,
        "output_token_count": event.output_tokens,
        "preemption_count": event.preemptions,
        "busy_seconds": event.busy_seconds,
        "wasted_seconds": event.wasted_seconds,
    }


def _step(
    book: Book,
    row: InferenceRequest,
    entry: TimelineEntry,
    trigger: Trigger,
    *,
    actor: str,
    at: datetime,
) -> None:
    if trigger in _ENDS:
        trigger = _true_end(trigger, row, book.choices(row))
    detail = json_storable(entry.detail)
    fields = _reported_error(entry, trigger)
    step = Step(trigger=trigger, actor=actor, at=at, detail=detail, fields=fields)
    if book.advance(row, step) or trigger is not Trigger.SCHEDULE:
        return
    if row.is_live and row.first_scheduled_at is None:
        # It began to run while its abort was on the way: no step, but a milestone all the same.
        book.set(row, first_scheduled_at=max(at, row.received_at))


def _true_end(trigger: Trigger, row: InferenceRequest, choices: list[Choice]) -> Trigger:
    """A request is aborted if at least one of its choices was, and only then."""
    reasons = {choice.finish_reason for choice in choices}
    if FinishReason.ABORT in reasons:
        return Trigger.ABORT_CONFIRM
    if trigger is Trigger.ABORT_CONFIRM and "" not in reasons:
        return Trigger.FAIL if FinishReason.ERROR in reasons else Trigger.FINISH
    if (State(row.state), trigger) not in TRANSITIONS:
        # An end that the table does not know from here would leave the request live for ever.
        return Trigger.FAIL
    return trigger


def _reported_error(entry: TimelineEntry, trigger: Trigger) -> dict[str, str]:
    """The error that the entry tells: of a choice's end, or in the detail of a refusal."""
    if trigger not in {Trigger.FAIL, Trigger.REJECT}:
        return {}
    end = entry.choice_end
    told = (end.error_code, end.error_message) if end is not None else _refusal(entry)
    code, message = told
    if not code:
        return {}
    return {
        "error_code": text_storable(code)[:LONGEST_CODE],
        "error_message": text_storable(message or ""),
    }


def _refusal(entry: TimelineEntry) -> tuple[str | None, str | None]:
    code, message = entry.detail.get("code"), entry.detail.get("message")
    return str(code) if code else None, str(message) if message else None
