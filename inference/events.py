"""What an engine tells the ledger about requests, in batches, as arguments of Celery tasks.

The same words as `inference.wire`, but another way: these travel as JSON through the broker and
may arrive twice or in any order, so each event is whole in itself.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from inference.errors import WireError
from inference.generation import FinishReason, TokenLogprobs
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey, Status

Kind = TypeVar("Kind")


class ChoiceEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one choice ended, whole: what the record keeps."""

    index: int
    finish_reason: FinishReason
    token_ids: list[int] = []
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    stop_reason: str | int | None = None
    abort: AbortInfo | None = None
    error_code: str | None = None
    error_message: str | None = None


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a request in this engine. `seq` counts from 1, without a gap.

    `choice_end` is set on the entry that reports the end of a choice; such an entry has a
    `trigger` only if the whole request ended with it. `at`: seconds since the epoch, from the
    engine's one clock, which never runs backwards.
    """

    seq: int
    at: float
    trigger: Trigger | None = None
    choice_end: ChoiceEnd | None = None
    first_token_at: float | None = None
    detail: dict[str, Any] = {}


class RequestEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's timeline in this engine up to its newest entry, oldest first.

    Each event repeats the entries before it, so recording the newest is enough, and an older
    one that arrives later is a duplicate. `wasted`/`busy` seconds: this request's share of the
    steps it was in, and the part of that after its abort was created.
    """

    key: RequestKey
    replica: str
    epoch: str
    timeline: list[TimelineEntry]
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    busy_seconds: float = 0.0
    wasted_seconds: float = 0.0


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Tokens so far of one running request."""

    key: RequestKey
    output_tokens: int


class ReplicaBeat(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's heartbeat, once a second, with the progress of what it runs."""

    status: Status
    bus_url: str
    at: float
    progress: list[Progress] = []


def to_json(events: list[RequestEvent] | ReplicaBeat) -> Any:
    """Plain builtins, for the arguments of a Celery task."""
    return msgspec.to_builtins(events)


def events_from_json(data: Any) -> list[RequestEvent]:
    """Raises `WireError` for what is not a list of events."""
    return _convert(data, list[RequestEvent])


def beat_from_json(data: Any) -> ReplicaBeat:
    """Raises `WireError` for what is not a heartbeat."""
    return _convert(data, ReplicaBeat)


def _convert(data: Any, kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise WireError(f"not an event: {problem}") from problem
