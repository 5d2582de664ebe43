"""Which request is due next. Pure bookkeeping: it neither waits nor ends anything."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from inference.worker.request import Request

SLACK = 64


class DeadlineKind(Enum):
    TOTAL = "deadline"
    QUEUE = "queue_deadline"


@dataclass(order=True, slots=True)
class Deadline:
    at: float
    number: int
    request: Request = field(compare=False)
    kind: DeadlineKind = field(compare=False)

    @property
    def is_moot(self) -> bool:
        """It ended before; or it was started, and only its waiting was limited."""
        started = self.kind is DeadlineKind.QUEUE and self.request.was_scheduled
        return self.request.is_ended or started


class Deadlines:
    """A heap, soonest first. Moot entries are dropped when they outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._numbers = itertools.count()
        self._sweep_at = SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, request: Request) -> None:
        """Deadlines count from the arrival of the request."""
        submit = request.submit
        for seconds, kind in (
            (submit.queue_deadline, DeadlineKind.QUEUE),
            (submit.deadline, DeadlineKind.TOTAL),
        ):
            if seconds is not None:
                at = request.arrived_at + seconds
                heapq.heappush(self._heap, Deadline(at, next(self._numbers), request, kind))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    @property
    def next_at(self) -> float | None:
        self._drop_moot()
        return self._heap[0].at if self._heap else None

    def due(self, now: float) -> Iterator[Deadline]:
        """Those that have passed and still matter, soonest first."""
        while (at := self.next_at) is not None and at <= now:
            yield heapq.heappop(self._heap)

    def _drop_moot(self) -> None:
        while self._heap and self._heap[0].is_moot:
            heapq.heappop(self._heap)

    def _sweep(self) -> None:
        self._heap = [deadline for deadline in self._heap if not deadline.is_moot]
        heapq.heapify(self._heap)
        self._sweep_at = 2 * len(self._heap) + SLACK
