"""The engine's thread: take commands, step if there is work, say what came of it; else sleep.

It owns the engine and every request. Other threads reach it through the inbox only, and it never
waits for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.engine.engine import Engine, SequenceUpdate, StepObserver
from inference.errors import EngineError
from inference.generation import AbortCause
from inference.wire import AbortInfo
from inference.worker.commands import Inbox
from inference.worker.desk import Desk

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EngineLoop(StepObserver):
    """`step_delay`: seconds added to each step, for tests. `has_failed`: it ended by a fault."""

    engine: Engine
    inbox: Inbox
    desk: Desk
    clock: Callable[[], float]
    step_delay: float = 0.0
    has_failed: bool = False
    _thread: threading.Thread | None = field(default=None)
    _started_at: float = field(default=0.0)

    def start(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called on the thread, after its last word."""
        self._thread = threading.Thread(
            target=self._run, args=(on_end,), name="engine", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_end: Callable[[], None]) -> None:
        try:
            while not self._is_over:
                self.turn()
        except Exception:  # nothing is left to rely on: end every request, then the process
            logger.exception("the engine failed")
            self.has_failed = True
            self.desk.finalizer.fail(self.desk.registry.live.values(), EngineError())
            self.desk.outbox.flush()
        finally:
            on_end()

    def turn(self) -> None:
        """One round. What an abort released is told before the next forward pass."""
        self._obey(wait=self._patience())
        self.desk.outbox.flush()
        if self.engine.has_work:
            self._step()
            self.desk.outbox.flush()

    def _obey(self, *, wait: float | None) -> None:
        for command in self.inbox.take(wait=wait):
            self.desk.handle(command)
        self.desk.expire()
        self._force()

    def _step(self) -> None:
        self._started_at = self.clock()
        time.sleep(self.step_delay)
        self.desk.steps.take(self.engine.step(self))

    def scheduled(self, updates: list[SequenceUpdate]) -> None:
        """Who begins to run is told before the pass, which may be long."""
        self.desk.steps.move(updates, at=self._started_at)
        self.desk.outbox.flush()

    def passed(self, seconds: float) -> None:
        """What was asked while the pass ran is done before its tokens count: none comes late."""
        self.desk.passed(seconds, started_at=self._started_at)
        self._obey(wait=0.0)

    def _patience(self) -> float | None:
        """How long there is nothing to do unless somebody asks for something."""
        if self.engine.has_work:
            return 0.0
        moments = (self.desk.deadlines.next_at, self.desk.force_at)
        known = [moment for moment in moments if moment is not None]
        return max(min(known) - self.clock(), 0.0) if known else None

    def _force(self) -> None:
        """The grace of a shutdown is over."""
        force_at = self.desk.force_at
        if force_at is not None and force_at <= self.clock():
            live = list(self.desk.registry.live.values())
            self.desk.finalizer.abort(live, AbortInfo(cause=AbortCause.SHUTDOWN))

    @property
    def _is_over(self) -> bool:
        return self.desk.force_at is not None and not self.desk.registry.live
