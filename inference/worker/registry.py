"""Which requests the engine process has, and what it remembers of those that it had.

Only the engine's thread uses it. It finds things and forgets things; it ends nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from inference.engine.sequence import SequenceId
from inference.wire import AbortInfo, RequestKey
from inference.worker.recall import Recall
from inference.worker.request import Choice, Request
from inference.worker.session import Session

# An abort that overtakes its Submit is still known when that arrives.
EARLY_ABORT_SECONDS = 60.0
EARLY_ABORT_LIMIT = 100_000
# A key that ended is told from one that never was.
ENDED_SECONDS = 300.0
ENDED_LIMIT = 100_000
# Whole requests that ended, for whoever attaches just then; after that the ledger serves them.
REPLAY_SECONDS = 15.0
REPLAY_LIMIT = 256


@dataclass(slots=True)
class Counts:
    """What was not as it should be, since the start."""

    duplicates: int = 0
    malformed: int = 0
    failed_commands: int = 0


class Registry:
    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self.live: dict[RequestKey, Request] = {}
        self.running: dict[SequenceId, tuple[Request, Choice]] = {}
        self._by_sequence: dict[SequenceId, tuple[Request, Choice]] = {}
        self._held_by: dict[Session, set[Request]] = {}
        self._numbers = itertools.count(1)
        self.early_aborts: Recall[RequestKey, AbortInfo] = Recall(
            seconds=EARLY_ABORT_SECONDS, limit=EARLY_ABORT_LIMIT, clock=clock
        )
        self.ended: Recall[RequestKey, None] = Recall(
            seconds=ENDED_SECONDS, limit=ENDED_LIMIT, clock=clock
        )
        self._replays: Recall[RequestKey, Request] = Recall(
            seconds=REPLAY_SECONDS, limit=REPLAY_LIMIT, clock=clock
        )

    def knows(self, key: RequestKey) -> bool:
        return key in self.live or key in self.ended

    def add(self, request: Request) -> None:
        self.live[request.key] = request
        if request.session is not None:
            self.hold(request.session, request)

    def number(self, request: Request) -> None:
        """Give each choice the id of its sequence in the engine."""
        for choice in request.choices:
            choice.seq_id = next(self._numbers)
            self._by_sequence[choice.seq_id] = (request, choice)

    def of_sequence(self, seq_id: SequenceId) -> tuple[Request, Choice] | None:
        return self._by_sequence.get(seq_id)

    def to_replay(self, key: RequestKey) -> Request | None:
        """A request whose outputs are still here: a live one, or one that ended just now."""
        return self.live.get(key) or self._replays.get(key)

    def hold(self, session: Session, request: Request) -> None:
        """The session hears of the request until either ends."""
        self._held_by.setdefault(session, set()).add(request)

    def held_by(self, session: Session) -> set[Request]:
        return self._held_by.get(session, set())

    def forget_session(self, session: Session) -> None:
        self._held_by.pop(session, None)

    def set_running(self, seq_id: SequenceId) -> None:
        self.running[seq_id] = self._by_sequence[seq_id]

    def set_waiting(self, seq_id: SequenceId) -> None:
        self.running.pop(seq_id, None)

    def retire_choice(self, choice: Choice) -> None:
        if choice.seq_id is not None:
            self._by_sequence.pop(choice.seq_id, None)
            self.running.pop(choice.seq_id, None)

    def retire(self, request: Request) -> None:
        """The request has ended: from live to remembered."""
        self.live.pop(request.key, None)
        for session in request.audience:
            held = self._held_by.get(session, set())
            held.discard(request)
            if not held:
                self._held_by.pop(session, None)
        request.followers = set()
        request.session = None
        self.ended.put(request.key, None)
        self._replays.put(request.key, request)
