"""What callers hand to the ledger's services, as frozen values. They know no storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from inference.events import ChoiceEnd
from inference.lifecycle import Trigger

Kind = Literal["chat", "completion", "response"]

# Seconds after its row was queued within which a request may be sent to its engine. Whoever is
# later must not send it: the ledger may have ended what no engine ever heard of.
SUBMIT_WITHIN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A validated request. `prompt`: the JSON list of prompts as sent; `params`: what was asked.

    `choice_count` = prompts * n. Deadlines are seconds from now.
    """

    kind: Kind
    model: str
    prompt: list[Any]
    params: dict[str, Any]
    n: int = 1
    choice_count: int = 1
    client_id: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    priority: int = 0
    deadline: float | None = None
    queue_deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a request will run, and which web process holds its client's connection."""

    replica: str
    epoch: str
    web: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One trigger on one request. `fields` are further columns to set in the same write.

    `at` None is now. `choice_index` is set where the step tells the end of one choice.
    """

    trigger: Trigger
    actor: str
    at: datetime | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a web process had of one request when it lost the engine.

    `begun`: something had come. `ends`: of each choice that had produced something or ended, all
    that its client was sent, and how it ended, or that its engine was lost.
    """

    request_id: str
    generation: int
    begun: bool = False
    ends: list[ChoiceEnd] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which requests; what is None or empty filters nothing. `older_than`: seconds."""

    state: str | None = None
    owner: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    older_than: float | None = None
    cause: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsRecorded:
    """What became of the events of one batch. `gaps`: those whose timeline lacks a beginning."""

    applied: int = 0
    duplicates: int = 0
    late: int = 0
    unknown: int = 0
    gaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a requested id stands for within a caller's sight. `request_id` None: nothing."""

    requested_id: str
    request_id: str | None = None
    detail: str = ""
