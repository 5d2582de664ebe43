"""The engine process's one clock: seconds since the epoch that never run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable


class EngineClock:
    """The wall clock at the start, carried on by one that is never set.

    Deadlines, timelines and heartbeats are all read from here, so their differences are never
    negative, whatever is done to the machine's clock meanwhile. Safe to use from any thread.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ticks = ticks
        self._first_tick = ticks()
        self._started_at = wall()

    @property
    def uptime(self) -> float:
        return self._ticks() - self._first_tick

    def now(self) -> float:
        return self._started_at + self.uptime
