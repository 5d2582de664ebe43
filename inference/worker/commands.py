"""What the engine's thread is asked to do between two steps. Plain data, in order of arrival."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TypeAlias

from inference.errors import HaltlineError
from inference.wire import AbortInfo, RequestKey, Submit
from inference.worker.request import Request
from inference.worker.session import Session


@dataclass(slots=True, eq=False)
class Submission:
    """A Submit on its way. `request` is set once the engine's thread has let it in."""

    submit: Submit
    session: Session
    received_at: float
    request: Request | None = None
    is_refused: bool = False

    @property
    def is_wanted(self) -> bool:
        """Tokenizing it still makes sense, as far as another thread can see."""
        ended = self.request is not None and self.request.is_ended
        return not (self.is_refused or ended)


@dataclass(slots=True, frozen=True)
class Arrive:
    submission: Submission


@dataclass(slots=True, frozen=True)
class Tokenized:
    """`texts`: the prompts as text, for `echo`."""

    submission: Submission
    prompt_ids: list[list[int]]
    texts: list[str] | None


@dataclass(slots=True, frozen=True)
class TokenizingFailed:
    submission: Submission
    error: HaltlineError


@dataclass(slots=True, frozen=True)
class AbortAsked:
    session: Session
    keys: list[RequestKey]
    info: AbortInfo
    received_at: float


@dataclass(slots=True, frozen=True)
class AttachAsked:
    session: Session
    key: RequestKey
    from_token: int


@dataclass(slots=True, frozen=True)
class StatusAsked:
    session: Session
    call: int


@dataclass(slots=True, frozen=True)
class SessionEnded:
    session: Session


@dataclass(slots=True, frozen=True)
class BeatDue:
    """Tell the ledger how things stand."""


@dataclass(slots=True, frozen=True)
class DrainAsked:
    """Take nothing new, and end: by itself, or by force once `grace` seconds are over."""

    grace: float


Command: TypeAlias = (
    Arrive
    | Tokenized
    | TokenizingFailed
    | AbortAsked
    | AttachAsked
    | StatusAsked
    | SessionEnded
    | BeatDue
    | DrainAsked
)


class Inbox:
    """Commands from any thread to the engine's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def take(self, *, wait: float | None) -> list[Command]:
        """All that is there; if that is nothing, waits up to `wait` seconds (None: for ever)."""
        taken: list[Command] = []
        try:
            taken.append(self._queue.get(timeout=wait) if wait != 0 else self._queue.get_nowait())
            # As many as there are now: whoever sends without pause must not stop the steps.
            taken.extend(self._queue.get_nowait() for _ in range(self._queue.qsize()))
        except queue.Empty:
            return taken
        return taken
