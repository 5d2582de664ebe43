"""An engine that accepts work, says a few tokens, and dies of the first abort that it hears."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from inference.bus import Connection, ConnectionClosedError
from inference.bus.handshake import welcome
from inference.bus.socket import SocketBus
from inference.wire import (
    VERSION,
    Abort,
    Accepted,
    Ask,
    ChoiceOutput,
    Outputs,
    Status,
    Submit,
    Welcome,
)

TEXT = "abc"


class DoomedEngine:
    """At a unix socket, in a thread. `tokens`: how many it says of each request."""

    model, replica, epoch, tokens = "doomed", "engine-doomed", "e-doomed", len(TEXT)

    def __init__(self, url: str, *, secret: str) -> None:
        self.is_connected = self.has_work = False
        self._url, self._secret = url, secret
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def __enter__(self) -> DoomedEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._over is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it has just died of itself
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await SocketBus(self._url).serve(self._handle)
        await self._over.wait()
        await server.close()

    async def _handle(self, connection: Connection) -> None:
        greeting = Welcome(
            version=VERSION,
            replica=self.replica,
            epoch=self.epoch,
            model=self.model,
            max_model_len=20_000,
        )
        await welcome(connection, answer=greeting, secret=self._secret)
        self.is_connected = True
        try:
            while not isinstance(message := await connection.receive(), Abort):
                self._answer(connection, message)
        except ConnectionClosedError:
            return
        assert self._over is not None
        self._over.set()

    def _answer(self, connection: Connection, message: Any) -> None:
        if isinstance(message, Submit):
            accepted = Accepted(key=message.key, epoch=self.epoch, prompt_tokens=[1])
            item = ChoiceOutput(key=message.key, index=0, text=TEXT, token_ids=[1, 2, 3])
            connection.send(accepted)
            connection.send(Outputs(epoch=self.epoch, step=1, items=[item]))
            self.has_work = True
        if isinstance(message, Ask):
            connection.send(self._status(message.call))

    def _status(self, call: int) -> Status:
        return Status(
            call=call,
            epoch=self.epoch,
            replica=self.replica,
            model=self.model,
            running=0,
            waiting=0,
            free_slots=1,
            total_slots=1,
            free_blocks=8,
            total_blocks=8,
            steps=0,
            last_step_seconds=0.0,
            uptime_seconds=1.0,
        )
