"""How the engine process is: its load, its heartbeat, and whether its parent still lives.

It reads the engine's numbers on the engine's thread and draws no conclusions: who is hung or
lost is for the ledger to say.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from inference.engine.engine import Engine
from inference.events import Progress, ReplicaBeat
from inference.wire import Status
from inference.worker.clock import EngineClock

PARENT_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Gauge:
    """`steps` and `last_step_seconds` are kept by the loop; `latest` may be read by any thread."""

    engine: Engine
    clock: EngineClock
    epoch: str
    replica: str
    model: str
    bus_url: str
    steps: int = 0
    last_step_seconds: float = 0.0
    latest: Status | None = field(default=None)

    def status(self, *, call: int = 0) -> Status:
        """The load now. Only on the engine's thread, between two steps."""
        load = self.engine.load()
        self.latest = Status(
            call=call,
            epoch=self.epoch,
            replica=self.replica,
            model=self.model,
            running=load.running,
            waiting=load.waiting,
            free_slots=load.free_slots,
            total_slots=load.total_slots,
            free_blocks=load.free_blocks,
            total_blocks=load.total_blocks,
            steps=self.steps,
            last_step_seconds=self.last_step_seconds,
            uptime_seconds=self.clock.uptime,
        )
        return self.latest

    def beat(self, progress: list[Progress]) -> ReplicaBeat:
        """A heartbeat. Only on the engine's thread, between two steps."""
        now = self.clock.now()
        status = self.status()
        return ReplicaBeat(status=status, bus_url=self.bus_url, at=now, progress=progress)

    def stale_beat(self) -> ReplicaBeat | None:
        """From any thread, when the engine's does not answer: alive, with the last known counts.

        Its `steps` stand still, which is how the ledger sees that the loop hangs.
        """
        if self.latest is None:
            return None
        status = msgspec.structs.replace(self.latest, uptime_seconds=self.clock.uptime)
        return ReplicaBeat(status=status, bus_url=self.bus_url, at=self.clock.now())


async def watch_parent(parent: int, on_death: Callable[[], None]) -> None:
    """Call `on_death` once this process has another parent than `parent`."""
    while os.getppid() == parent:  # noqa: ASYNC110 - no system tells of it everywhere
        await asyncio.sleep(PARENT_SECONDS)
    on_death()
