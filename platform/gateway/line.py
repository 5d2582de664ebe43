"""One connection to one engine, kept up: greeted, read, watched, and re-made when it breaks.

While it stands it is never silent for long: its listener asks something every second, and 15 s
without a word count as a loss. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import Protocol

from inference.bus import Bus, Connection, ConnectionClosedError
from inference.bus.handshake import greet
from inference.errors import UnavailableError, WireError
from inference.wire import AnyMessage, Welcome

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTimes:
    """How long things may take, in seconds.

    `ask`: between two questions; `hung`, `lost`: of silence, before no new work is sent and
    before the line is given up; `accept`, `call`: longest waits for the engine's word on a request
    and for an answer; `unopened`: within which a response must begin to read; `silent`: without
    output, before the record is read; `requeue`: longest wait for another engine.
    """

    ask: float = 1.0
    hung: float = 5.0
    lost: float = 15.0
    accept: float = 30.0
    call: float = 10.0
    unopened: float = 0.5
    silent: float = 0.5
    requeue: float = 30.0
    longest_backoff: float = 2.0


class Listener(Protocol):
    """Who hears what happens on a line."""

    def line_up(self, welcome: Welcome) -> None: ...

    def line_tick(self) -> None:
        """Time to ask something, so that the engine has something to say."""

    def line_message(self, message: AnyMessage) -> None: ...

    async def line_down(self, welcome: Welcome) -> None:
        """The line that stood is broken; the next one is tried when this returns."""


class Line:
    """`name` is what the engine's logs call this end. Used from one event loop."""

    def __init__(
        self, bus: Bus, *, name: str, secret: str, times: LineTimes, listener: Listener
    ) -> None:
        self._bus, self._name, self._secret = bus, name, secret
        self._times, self._listener = times, listener
        self._connection: Connection | None = None
        self._last_heard = 0.0

    @property
    def up(self) -> bool:
        return self._connection is not None

    @property
    def hung(self) -> bool:
        """Up, but silent for longer than an engine that works ever is."""
        return self.up and self._silence() > self._times.hung

    def send(self, message: AnyMessage) -> None:
        """Does not wait. Raises `UnavailableError` while the line is down."""
        if self._connection is None:
            raise UnavailableError
        try:
            self._connection.send(message)
        except ConnectionClosedError:
            raise UnavailableError from None

    async def run(self) -> None:
        """Connect, read until the line breaks, and again; until cancelled."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                await self._session()
                backoff = FIRST_BACKOFF
            except (ConnectionError, WireError) as problem:
                logger.debug("%s: %s", self._name, problem)
            await asyncio.sleep(backoff * random.uniform(0.7, 1.3))  # noqa: S311 - only spreads
            backoff = min(backoff * 2, self._times.longest_backoff)

    async def _session(self) -> None:
        """One connection, from its greeting to its end. Raises `ConnectionError` without one."""
        connection = await self._bus.connect()
        try:
            welcome = await greet(connection, client=self._name, secret=self._secret)
            self._connection = connection
            self._heard()
            self._listener.line_up(welcome)
            try:
                await self._read(connection)
            finally:
                self._connection = None
                await self._listener.line_down(welcome)
        finally:
            await connection.close()

    async def _read(self, connection: Connection) -> None:
        watch = asyncio.create_task(self._watch(connection))
        try:
            while True:
                try:
                    message = await connection.receive()
                except WireError as problem:
                    logger.warning("%s: %s", self._name, problem)
                    continue
                except ConnectionClosedError:
                    return
                self._heard()
                self._listener.line_message(message)
        finally:
            watch.cancel()

    async def _watch(self, connection: Connection) -> None:
        while self._silence() < self._times.lost:
            self._listener.line_tick()
            await asyncio.sleep(self._times.ask)
        logger.error("%s: the engine has been silent for %.1f s", self._name, self._silence())
        await connection.close()

    def _heard(self) -> None:
        self._last_heard = time.monotonic()

    def _silence(self) -> float:
        return time.monotonic() - self._last_heard
