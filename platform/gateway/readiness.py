"""Whether this process can serve: database, broker, a worker for control and an engine all answer.

Each part is asked with a deadline; the findings are kept for a second, however many ask. A part
that does not answer is a word for operators, never an exception.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import redis
from django.conf import settings
from django.db import connection

from gateway.database import in_database
from gateway.relay import Relay
from gateway.workers import queue_has_worker

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
DEADLINE = 2.0
WORKER_SECONDS = 1.0
BROKER_SECONDS = 0.5
# Aborts and events go through it: without a worker there, nothing that is stopped gets a receipt.
NEEDED_QUEUE = "control"

# One thread: the reply queue is named after the thread that asks, and stays in the broker.
_broker_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="readiness")


@dataclass(frozen=True, slots=True)
class Readiness:
    """`problems`: what does not answer, and why; empty if all is well."""

    problems: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return not self.problems


class ReadinessCheck:
    """One per process and event loop."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._lock = asyncio.Lock()
        self._found: Readiness | None = None
        self._found_at = 0.0

    async def look(self) -> Readiness:
        """At most `FRESH_SECONDS` old, or new."""
        async with self._lock:
            if self._found is None or time.monotonic() - self._found_at > FRESH_SECONDS:
                self._found = await self._ask_all()
                self._found_at = time.monotonic()
            return self._found

    async def _ask_all(self) -> Readiness:
        asked: dict[str, Callable[[], Awaitable[str]]] = {
            "database": _database,
            "tasks": _broker_and_worker,
            "engine": self._engine,
        }
        answers = await asyncio.gather(*(_in_time(part) for part in asked.values()))
        return Readiness({name: said for name, said in zip(asked, answers, strict=True) if said})

    async def _engine(self) -> str:
        status = self.relay.status()
        if not status.ready:
            return "; ".join(status.problems) or "there is no engine"
        if await self.relay.answers(within=DEADLINE / 2):
            return ""
        return "no engine answers"


async def _in_time(part: Callable[[], Awaitable[str]]) -> str:
    """What the part says is wrong with it: nothing, if it is well."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await part()
    except TimeoutError:
        return f"no answer within {DEADLINE:g} s"
    except Exception as problem:  # noqa: BLE001 - any failure at all means: not ready
        logger.warning("readiness: %s: %s", type(problem).__name__, problem)
        return f"{type(problem).__name__}: {problem}"


async def _database() -> str:
    await in_database(_select_one)
    return ""


def _select_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


async def _broker_and_worker() -> str:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_broker_thread, _ask_broker_and_worker)


def _ask_broker_and_worker() -> str:
    """The worker answers through the broker, so the broker is asked first."""
    client = redis.Redis.from_url(
        settings.HALTLINE_BROKER_URL,
        socket_timeout=BROKER_SECONDS,
        socket_connect_timeout=BROKER_SECONDS,
    )
    try:
        client.ping()
    except (redis.RedisError, OSError) as problem:
        return f"the broker does not answer: {problem}"
    finally:
        client.close()
    if queue_has_worker(settings.CELERY_BROKER_URL, NEEDED_QUEUE, within=WORKER_SECONDS):
        return ""
    return f"no Celery worker of the queue {NEEDED_QUEUE!r} answers"


_check: ReadinessCheck | None = None


def readiness_of(relay: Relay) -> ReadinessCheck:
    """This process's check; a new one for another relay."""
    global _check  # noqa: PLW0603 - one per process is the point
    if _check is None or _check.relay is not relay:
        _check = ReadinessCheck(relay)
    return _check
