"""Daphne with what token streams need: back-pressure, an end to slow readers, a drain.

Daphne's own `send` never waits, so a client that stops reading would fill the memory, and its
SIGTERM cuts open streams. Knows nothing of what is served: the drain's acts are handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from daphne.http_protocol import WebRequest
from daphne.server import Server as DaphneServer
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from gateway.connection import EXTENSION, ClientConnection
from haltline.backpressure import Gate, eager_send
from haltline.bridge import App, Receive, Scope, Send

logger = logging.getLogger(__name__)

BACKLOG = 2048
POLL_SECONDS = 0.05
# Our own message from the guard: the response cannot be completed.
BREAK = "haltline.break"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What happens between SIGTERM and the end.

    `begin()` at once; `hurry()` after `patience` seconds, if requests still run; `finish()` when
    none does, or after `reserve` seconds more.
    """

    begin: Callable[[], None]
    hurry: Callable[[], None]
    finish: Callable[[], Awaitable[None]]
    patience: float
    reserve: float


class AppServer(DaphneServer):  # type: ignore[misc]  # Daphne has no types
    """`send_timeout`: seconds that a client may leave its data unread.

    `failure` says why the server could not listen, if it could not.
    """

    def __init__(
        self,
        application: App,
        *,
        start: Callable[[], None],
        drain: Drain,
        send_timeout: float,
        eager: bool,
        **options: Any,
    ) -> None:
        super().__init__(Guard(application), **options)
        self._start, self._drain = start, drain
        self._send_timeout, self._eager = send_timeout, eager
        self.failure: str | None = None

    def run(self) -> None:
        reactor.callWhenRunning(self._start)
        super().run()

    def listen_error(self, failure: Any) -> None:
        self.failure = failure.getErrorMessage()
        self.stop()

    # -- one connection

    def create_application(self, protocol: Any, scope: Scope) -> Any:
        protocol.client_connection = ClientConnection()
        scope.setdefault("extensions", {})[EXTENSION] = protocol.client_connection
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        if message["type"] == BREAK:
            _cut(protocol)
        elif message["type"] != "http.response.body":
            await super().handle_reply(protocol, message)
        elif await self._may_write(protocol, more=message.get("more_body", False)):
            if self._eager and message.get("more_body") and eager_send(protocol, message["body"]):
                return
            await super().handle_reply(protocol, message)

    async def _may_write(self, protocol: Any, *, more: bool) -> bool:
        """Wait for a slow reader; cut it off when it does not read."""
        gate: Gate | None = getattr(protocol, "gate", None)
        if gate is None and more and not protocol.finished and protocol.channel is not None:
            gate = protocol.gate = Gate()
            protocol.registerProducer(gate, True)
        if gate is not None and not await gate.passed(within=self._send_timeout):
            logger.warning("a client did not read for %g s and was cut off", self._send_timeout)
            protocol.client_connection.slow = True
            _cut(protocol)
            return False
        if gate is not None and not more and protocol.channel is not None:
            protocol.gate = None
            protocol.unregisterProducer()  # Twisted does not finish a response that has one
        return True

    # -- the end

    def kill_all_applications(self) -> Any:
        """Twisted's hook before its shutdown, which waits for what this returns."""
        for listener in self.listeners:
            listener.addCallback(_stop_listening)
        return Deferred.fromFuture(asyncio.ensure_future(self._drain_all()))

    async def _drain_all(self) -> None:
        self._drain.begin()
        if not await self._quiet(within=self._drain.patience):
            self._drain.hurry()
            await self._quiet(within=self._drain.reserve)
        await self._drain.finish()
        await self._cancel_all()

    async def _quiet(self, *, within: float) -> bool:
        """Whether every HTTP request has been answered; websockets have no end of their own."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        while self._running(WebRequest):
            if loop.time() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _cancel_all(self) -> None:
        left = self._running(object)
        for application in left:
            application.cancel()
        if left:
            logger.info("%d connections closed", len(left))
            await asyncio.wait(left, timeout=POLL_SECONDS * 20)

    def _running(self, kind: type[object]) -> list[asyncio.Future[Any]]:
        """The applications of connections of this kind that have not returned."""
        found = (
            details.get("application_instance")
            for protocol, details in self.connections.items()
            if isinstance(protocol, kind)
        )
        return [application for application in found if application and not application.done()]


class Guard:
    """Around the application: an exception is logged, and ends its response instead of hanging it.

    Daphne would try to send an error page, which fails in the middle of a stream, and stops
    looking after its connections.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:
            logger.exception("the application failed on %s", scope["path"])
            await send({"type": BREAK})


def endpoint(*, bind: str, port: int, fd: int | None = None) -> str:
    """Twisted's words for where to listen: a socket that is open already, or an address."""
    if fd is not None:
        return f"fd:fileno={fd}"
    host = bind.strip("[]").replace(":", r"\:")
    return f"tcp:port={port}:interface={host}:backlog={BACKLOG}"


def _cut(protocol: Any) -> None:
    if protocol.channel is not None:
        protocol.channel.forceAbortClient()


def _stop_listening(port: Any) -> Any:
    port.stopListening()
    return port
