"""An engine that says only what a test tells it to, on the bus of the test's choice."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from inference.bus import Connection
from inference.bus.handshake import welcome
from inference.bus.memory import MemoryBus, MemoryServer
from inference.generation import FinishReason
from inference.wire import (
    VERSION,
    Abort,
    Accepted,
    AnyMessage,
    Ask,
    ChoiceOutput,
    Outputs,
    RequestKey,
    Status,
    Submit,
    Welcome,
)

Kind = TypeVar("Kind")


class FakeEngine:
    """`accepts`: whether it accepts each Submit by itself; `answers`: whether each Ask."""

    def __init__(self, *, epoch: str = "e1", accepts: bool = True, answers: bool = True) -> None:
        self.bus = MemoryBus()
        self.epoch, self.accepts, self.answers = epoch, accepts, answers
        self.heard: list[AnyMessage] = []
        self._arrived = asyncio.Event()
        self._connection: Connection | None = None
        self._server: MemoryServer | None = None

    async def start(self) -> None:
        self._server = await self.bus.serve(self._handle)

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def hang_up(self) -> None:
        assert self._connection is not None
        await self._connection.close()

    def say(self, message: AnyMessage) -> None:
        assert self._connection is not None
        self._connection.send(message)

    def output(self, key: RequestKey, text: str = "", *, index: int = 0, **more: Any) -> None:
        ids = list(text.encode())
        item = ChoiceOutput(key=key, index=index, text=text, token_ids=ids, **more)
        self.say(Outputs(epoch=self.epoch, step=1, items=[item]))

    def finish(self, key: RequestKey, *, index: int = 0, **more: Any) -> None:
        self.output(key, index=index, **{"finish_reason": FinishReason.STOP, **more})

    async def next(self, kind: type[Kind]) -> Kind:
        """The next message of this kind that has not been looked at."""
        async with asyncio.timeout(5):
            while True:
                for message in self.heard:
                    if isinstance(message, kind):
                        self.heard.remove(message)
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    @property
    def aborts(self) -> list[Abort]:
        return [message for message in self.heard if isinstance(message, Abort)]

    async def _handle(self, connection: Connection) -> None:
        greeting = Welcome(
            version=VERSION, replica="r1", epoch=self.epoch, model="tiny", max_model_len=100
        )
        await welcome(connection, answer=greeting)
        self._connection = connection
        while True:
            message = await connection.receive()
            self.heard.append(message)
            self._arrived.set()
            if isinstance(message, Submit) and self.accepts:
                connection.send(Accepted(key=message.key, epoch=self.epoch, prompt_tokens=[3]))
            if isinstance(message, Ask) and self.answers:
                connection.send(self._status(message.call))

    def _status(self, call: int) -> Status:
        return Status(
            call=call,
            epoch=self.epoch,
            replica="r1",
            model="tiny",
            running=0,
            waiting=0,
            free_slots=4,
            total_slots=4,
            free_blocks=8,
            total_blocks=8,
            steps=0,
            last_step_seconds=0.0,
            uptime_seconds=1.0,
        )
