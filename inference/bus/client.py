"""Short conversations with an engine: connect, ask, take the answer, hang up.

For Celery tasks and commands. `call` is a coroutine; the other functions may be used where no
event loop runs, and never wait longer than their `timeout`. Long-lived links are the relay's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from inference.bus import Bus, Connection
from inference.bus.handshake import greet
from inference.bus.socket import SocketBus
from inference.errors import WireError, by_code
from inference.wire import (
    Abort,
    Aborted,
    AbortInfo,
    Accepted,
    AnyMessage,
    Ask,
    Attach,
    CallFailed,
    Rejected,
    Release,
    RequestKey,
    Status,
    Submit,
    Welcome,
)

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
BEYOND = 2**31 - 1
Answer = TypeVar("Answer")


@asynccontextmanager
async def connected(
    bus: Bus, *, secret: str = "", client: str = ""
) -> AsyncIterator[tuple[Connection, Welcome]]:
    """A greeted connection, closed at the end. Raises `ConnectionError`."""
    connection = await bus.connect()
    try:
        yield connection, await greet(connection, client=client or _own_name(), secret=secret)
    finally:
        await connection.close()


async def call(
    url: str | Bus,
    message: AnyMessage,
    *answers: type[Answer],
    secret: str = "",
    within: float = TIMEOUT_SECONDS,
) -> Answer:
    """Send one message; the first message of one of the kinds `answers` is the result.

    Raises `ConnectionError` if no engine answers there, or hangs up, or refuses, or does not
    answer within `within` seconds; the `HaltlineError` that a `CallFailed` names.
    """
    bus = SocketBus(url) if isinstance(url, str) else url
    try:
        async with asyncio.timeout(within), connected(bus, secret=secret) as (connection, _):
            connection.send(message)
            return await _first_of(connection, answers)
    except TimeoutError as problem:
        raise ConnectionError(f"the engine at {url} did not answer in {within:g} s") from problem


def abort(
    url: str,
    *,
    keys: Sequence[RequestKey],
    info: AbortInfo,
    secret: str = "",
    timeout: float = TIMEOUT_SECONDS,
) -> list[Release]:
    """Stop these requests; one outcome each, after slots and blocks were released.

    Raises `ConnectionError`: what the engine did is then not known.
    """
    message = Abort(keys=list(keys), info=info)
    return asyncio.run(call(url, message, Aborted, secret=secret, within=timeout)).releases


def submit(
    url: str, *, submission: Submit, secret: str = "", timeout: float = TIMEOUT_SECONDS
) -> Accepted | Rejected:
    """Hand over a background request: not `attached`, or hanging up would abort it.

    Raises `ConnectionError`: whether the engine has it is then not known.
    """
    if submission.attached:
        raise ValueError("a short conversation cannot hold an attached request")
    answer: Coroutine[Any, Any, Accepted | Rejected] = call(
        url, submission, Accepted, Rejected, secret=secret, within=timeout
    )
    return asyncio.run(answer)


def missing(
    url: str | Bus,
    *,
    keys: Sequence[RequestKey],
    secret: str = "",
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[str, set[RequestKey]]:
    """The engine's epoch, and which of these requests it does not have. Changes nothing there.

    A request that ended some seconds ago may be missing too. Raises `ConnectionError`.
    """
    bus = SocketBus(url) if isinstance(url, str) else url
    return asyncio.run(_missing(bus, keys, secret=secret, within=timeout))


async def _missing(
    bus: Bus, keys: Sequence[RequestKey], *, secret: str, within: float
) -> tuple[str, set[RequestKey]]:
    """Follows each from beyond its last token: an engine refuses at once what it does not have."""
    found: set[RequestKey] = set()
    try:
        async with asyncio.timeout(within), connected(bus, secret=secret) as (connection, _):
            for key in keys:
                connection.send(Attach(key=key, from_token=BEYOND))
            connection.send(Ask(call=1))
            while True:
                answer: Rejected | Status = await _first_of(connection, (Rejected, Status))
                if isinstance(answer, Status):
                    return answer.epoch, found
                found.add(answer.key)
    except TimeoutError as problem:
        raise ConnectionError(f"the engine did not answer in {within:g} s") from problem


def ask(url: str, *, secret: str = "", timeout: float = TIMEOUT_SECONDS) -> Status:
    """The engine's load now. Raises `ConnectionError`; an answer means that its loop turns."""
    return asyncio.run(call(url, Ask(call=1), Status, secret=secret, within=timeout))


async def _first_of(connection: Connection, kinds: tuple[type[Answer], ...]) -> Answer:
    while True:
        try:
            message = await connection.receive()
        except WireError as problem:
            logger.warning("bus: %s sent no message: %s", connection.peer, problem)
            continue
        if isinstance(message, kinds):
            return message
        if isinstance(message, CallFailed):
            raise by_code(message.code)(message.message)


def _own_name() -> str:
    return f"pid-{os.getpid()}"
