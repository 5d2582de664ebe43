"""The engine process put together: bus, tokenizer, engine loop, ledger events, and their order.

`Worker` is the whole of it around an engine that is already built, so that tests can run it over
any bus; `run` is the process. Who stops whom, and in which order, is decided here only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from inference.bus import Bus, Server
from inference.bus.socket import SocketBus
from inference.engine.engine import Engine
from inference.engine.tokenizer import Tokenizer
from inference.wire import VERSION, Welcome
from inference.worker.admission import Admission
from inference.worker.clock import EngineClock
from inference.worker.commands import BeatDue, DrainAsked, Inbox
from inference.worker.config import WorkerConfig
from inference.worker.deadlines import Deadlines
from inference.worker.desk import Desk
from inference.worker.ending import Finalizer
from inference.worker.front import Front, Mail
from inference.worker.health import Gauge, watch_parent
from inference.worker.ledger_events import CelerySender, Publisher
from inference.worker.loop import EngineLoop
from inference.worker.outbox import Outbox
from inference.worker.registry import Registry
from inference.worker.steps import StepReport
from inference.worker.tokenizing import Scribe, TokenizerThread

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
FLUSH_EVENTS_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEngine:
    """An engine with its model loaded. `max_model_len`: tokens of prompt and output together."""

    engine: Engine
    tokenizer: Tokenizer
    max_model_len: int


class Worker:
    """Build it in the event loop that it is to run in."""

    def __init__(self, config: WorkerConfig, ready: ReadyEngine, *, publisher: Publisher) -> None:
        self.epoch = secrets.token_hex(8)
        self.config, self.publisher = config, publisher
        self.clock = EngineClock()
        self.inbox = Inbox()
        self.registry = Registry(clock=self.clock.now)
        self._events = asyncio.get_running_loop()
        self._mail = Mail(self._events)
        scribe = Scribe(tokenizer=ready.tokenizer, max_model_len=ready.max_model_len)
        self._tokenizer = TokenizerThread(scribe, inbox=self.inbox, deliver=self._mail.deliver)
        self.gauge = self._gauge(ready.engine)
        self.loop = EngineLoop(
            engine=ready.engine,
            inbox=self.inbox,
            desk=self._desk(ready.engine),
            clock=self.clock.now,
            step_delay=config.step_delay,
        )
        self.front = self._front(ready)
        self._over = asyncio.Event()
        self._server: Server | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, bus: Bus) -> None:
        """Raises `OSError` if the bus's address is taken."""
        self._server = await bus.serve(self.front.handle)
        self.publisher.start()
        self._tokenizer.start()
        self.loop.start(self._end)
        self._beating = asyncio.create_task(self._beat())

    def drain(self, grace: float) -> None:
        """End: refuse new work, let what runs finish within `grace` seconds, then abort it."""
        self.inbox.put(DrainAsked(grace))

    async def finished(self) -> bool:
        """Wait for the end, then leave nothing unsaid. False if the engine ended by a fault."""
        await self._over.wait()
        self.loop.join()
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            await self._server.close()
        await asyncio.to_thread(self._tokenizer.stop)
        await asyncio.to_thread(self.publisher.close, within=FLUSH_EVENTS_SECONDS)
        return not self.loop.has_failed

    def _end(self) -> None:
        """On the engine's thread, after its last word."""
        self._events.call_soon_threadsafe(self._over.set)

    async def _beat(self) -> None:
        """Once a second; if the engine's thread did not get round to the last one, in its stead."""
        while True:
            steps, latest = self.gauge.steps, self.gauge.latest
            self.inbox.put(BeatDue())
            await asyncio.sleep(BEAT_SECONDS)
            is_silent = self.gauge.latest is latest and self.gauge.steps == steps
            if is_silent and (beat := self.gauge.stale_beat()) is not None:
                self.publisher.beat(beat)

    def _gauge(self, engine: Engine) -> Gauge:
        return Gauge(
            engine=engine,
            clock=self.clock,
            epoch=self.epoch,
            replica=self.config.replica,
            model=self.config.served_name,
            bus_url=self.config.bus_url,
        )

    def _desk(self, engine: Engine) -> Desk:
        registry, now, deadlines = self.registry, self.clock.now, Deadlines()
        outbox = Outbox(
            epoch=self.epoch,
            replica=self.config.replica,
            deliver=self._mail.deliver,
            record=self.publisher.record,
        )
        finalizer = Finalizer(engine=engine, registry=registry, outbox=outbox, clock=now)
        return Desk(
            registry=registry,
            outbox=outbox,
            finalizer=finalizer,
            admission=self._admission(engine, outbox, finalizer, deadlines),
            deadlines=deadlines,
            steps=StepReport(registry=registry, outbox=outbox, finalizer=finalizer, clock=now),
            gauge=self.gauge,
            beat=self.publisher.beat,
            clock=now,
        )

    def _admission(
        self, engine: Engine, outbox: Outbox, finalizer: Finalizer, deadlines: Deadlines
    ) -> Admission:
        return Admission(
            models=frozenset({self.config.served_name, self.config.model}),
            engine=engine,
            registry=self.registry,
            deadlines=deadlines,
            outbox=outbox,
            finalizer=finalizer,
        )

    def _front(self, ready: ReadyEngine) -> Front:
        greeting = Welcome(
            version=VERSION,
            replica=self.config.replica,
            epoch=self.epoch,
            model=self.config.served_name,
            max_model_len=ready.max_model_len,
        )
        return Front(
            greeting=greeting,
            secret=self.config.bus_secret,
            inbox=self.inbox,
            tokenizer=self._tokenizer,
            counts=self.registry.counts,
            clock=self.clock.now,
        )


async def run(config: WorkerConfig, ready: ReadyEngine) -> bool:
    """The process from a loaded engine to its end. False if it ended by a fault."""
    sender = CelerySender(config.broker_url) if config.broker_url else None
    worker = Worker(config, ready, publisher=Publisher(sender))
    await worker.start(SocketBus(config.bus_url))
    logger.info("%s serves %s at %s", config.replica, config.served_name, config.bus_url)
    with _stopped_by_signals(worker):
        watching = _watch_parent(config, worker)
        has_ended_well = await worker.finished()
        if watching is not None:
            watching.cancel()
    logger.info("%s ended", config.replica)
    return has_ended_well


@contextlib.contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """The first signal drains; a second one does not wait for what runs; later ones do nothing."""
    loop = asyncio.get_running_loop()
    graces = iter([worker.config.grace])

    def stop() -> None:
        grace = next(graces, 0.0)
        logger.info("stopping, with %g s for what runs", grace)
        worker.drain(grace)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # the end is decided, and so is its code


def _watch_parent(config: WorkerConfig, worker: Worker) -> asyncio.Task[None] | None:
    if config.parent_pid is None:
        return None
    return asyncio.create_task(watch_parent(config.parent_pid, lambda: worker.drain(config.grace)))
