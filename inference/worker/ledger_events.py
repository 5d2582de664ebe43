"""Events and heartbeats on their way to the ledger, as Celery tasks, from one thread.

Batches wait for a moment to grow, and for as long as it takes while the broker is away. An event
repeats its request's whole timeline, so a newer one replaces an older one that was not sent yet:
what waits is bounded by the number of requests, and beyond that by `limit`, oldest first.
Nothing here is ever waited for by the engine's thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from inference.events import ReplicaBeat, RequestEvent, to_json
from inference.wire import RequestKey

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.02
RETRY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0)
BUFFER_LIMIT = 100_000
BATCH_EVENTS = 200
BATCH_TOKENS = 100_000

BROKER_SECONDS = 5.0

QUEUE = "control"
EVENTS_TASK = "ledger.tasks.events_record"
BEAT_TASK = "ledger.tasks.replica_beat"


class Sender(Protocol):
    """Hands one task to the broker, or raises. May wait for seconds."""

    def __call__(self, task: str, argument: Any) -> None: ...


class Publisher:
    """`send` None: there is no broker; events are kept up to `limit`, to be looked at.

    `dropped`: events that a full buffer had no place for, since the start.
    """

    def __init__(
        self, send: Sender | None, *, limit: int = BUFFER_LIMIT, coalesce: float = COALESCE_SECONDS
    ) -> None:
        self._send, self._limit, self._coalesce = send, limit, coalesce
        self._events: OrderedDict[RequestKey, RequestEvent] = OrderedDict()
        self._beat: ReplicaBeat | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._gave_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-events", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        if self._send is not None:
            self._thread.start()

    @property
    def waiting(self) -> list[RequestEvent]:
        """What has not been sent, oldest first."""
        with self._changed:
            return list(self._events.values())

    def record(self, events: list[RequestEvent]) -> None:
        """From any thread; does not wait."""
        with self._changed:
            for event in events:
                self._events.pop(event.key, None)
                self._events[event.key] = event
            self._drop_oldest()
            self._changed.notify()

    def beat(self, beat: ReplicaBeat) -> None:
        """From any thread; does not wait. Only the newest is worth sending."""
        with self._changed:
            self._beat = beat
            self._changed.notify()

    def close(self, *, within: float) -> bool:
        """Send what is there, for at most `within` seconds. False if some of it was not sent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(max(within, 0.0))
        self._gave_up.set()
        lost = len(self.waiting) if self._send is not None else 0
        if lost:
            logger.error("%d events could not be handed to the broker", lost)
        return not lost

    def _drop_oldest(self) -> None:
        before = self.dropped
        while len(self._events) > self._limit:
            self._events.popitem(last=False)
            self.dropped += 1
        if self.dropped > before == 0:
            logger.error("the buffer of events is full: the oldest are dropped from now on")

    def _run(self) -> None:
        failures = 0
        while self._wait():
            if self._publish():
                failures = 0
                continue
            pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
            failures += 1
            if self._gave_up.wait(pause):
                return

    def _wait(self) -> bool:
        """Until there is something, and a little longer for more. False: closed, all is sent."""
        with self._changed:
            while not self._events and self._beat is None:
                if self._is_closing:
                    return False
                self._changed.wait()
            is_closing = self._is_closing
        if not is_closing:
            self._gave_up.wait(self._coalesce)
        return True

    def _publish(self) -> bool:
        """One beat and one batch. What could not be sent stays, unless a newer one replaces it."""
        with self._changed:
            beat, batch = self._beat, _first(self._events)
        try:
            if beat is not None:
                self._give(BEAT_TASK, beat)
            if batch:
                self._give(EVENTS_TASK, batch)
        except Exception as problem:  # noqa: BLE001 - kombu's and redis's are of many kinds
            logger.warning("the broker takes no events: %s", problem)
            return False
        self._forget(beat, batch)
        return True

    def _give(self, task: str, content: list[RequestEvent] | ReplicaBeat) -> None:
        if self._send is not None:
            self._send(task, to_json(content))

    def _forget(self, beat: ReplicaBeat | None, batch: list[RequestEvent]) -> None:
        with self._changed:
            if self._beat is beat:
                self._beat = None
            for event in batch:
                if self._events.get(event.key) is event:
                    del self._events[event.key]


def _first(events: OrderedDict[RequestKey, RequestEvent]) -> list[RequestEvent]:
    """As many of the oldest as make one task of bearable size, but at least one."""
    batch: list[RequestEvent] = []
    tokens = 0
    for event in events.values():
        tokens += event.output_tokens
        if batch and (len(batch) >= BATCH_EVENTS or tokens > BATCH_TOKENS):
            break
        batch.append(event)
    return batch


class CelerySender:
    """Tasks by name to the `control` queue. Celery is loaded at the first one."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._app: Celery | None = None

    def __call__(self, task: str, argument: Any) -> None:
        if self._app is None:
            self._app = _celery(self._broker_url)
        self._app.send_task(task, args=[argument], queue=QUEUE, retry=False, ignore_result=True)


def _celery(broker_url: str) -> Celery:
    from celery import Celery

    app = Celery("haltline-engine", broker=broker_url, set_as_current=False)
    app.conf.update(
        broker_pool_limit=1,
        broker_connection_timeout=BROKER_SECONDS,
        broker_transport_options={
            "socket_timeout": BROKER_SECONDS,  # a broker that hangs must not hang this thread
            "socket_connect_timeout": BROKER_SECONDS,
            "socket_keepalive": True,
        },
    )
    return app
