"""The first words on a connection: who calls, in which version, and whether they may.

Both sides wait for the other's word for a bounded time only. It knows the wire's greeting and
nothing of what is said afterwards.
"""

from __future__ import annotations

import asyncio
import hmac

from inference.bus import Connection, ConnectionClosedError
from inference.errors import WireError
from inference.wire import VERSION, AnyMessage, Hello, Refused, Welcome

GREETING_SECONDS = 5.0


class HandshakeError(ConnectionClosedError):
    """The other side did not greet as it should, or refused."""


async def greet(
    connection: Connection, *, client: str, secret: str = "", within: float = GREETING_SECONDS
) -> Welcome:
    """The client's side. Raises `HandshakeError`, with the engine's reason if it gave one."""
    connection.send(Hello(version=VERSION, client=client, secret=secret))
    answer = await _first(connection, within=within)
    if isinstance(answer, Refused):
        raise HandshakeError(f"{connection.peer} refused: {answer.reason}")
    if not isinstance(answer, Welcome):
        raise HandshakeError(f"{connection.peer} did not answer with a welcome")
    if answer.version != VERSION:
        raise HandshakeError(f"{connection.peer} speaks version {answer.version}, not {VERSION}")
    return answer


async def welcome(
    connection: Connection, *, answer: Welcome, secret: str = "", within: float = GREETING_SECONDS
) -> Hello:
    """The engine's side. A caller that may not talk is told why; then `HandshakeError`."""
    first = await _first(connection, within=within)
    try:
        hello = _checked(first, secret=secret)
    except HandshakeError as refusal:
        connection.send(Refused(reason=str(refusal)))
        raise
    connection.send(answer)
    return hello


def _checked(message: AnyMessage, *, secret: str) -> Hello:
    if not isinstance(message, Hello):
        raise HandshakeError("say hello first")
    if message.version != VERSION:
        raise HandshakeError(f"this engine speaks version {VERSION}, not {message.version}")
    if not hmac.compare_digest(message.secret.encode(), secret.encode()):
        raise HandshakeError("the shared secret is wrong; see HALTLINE_BUS_SECRET")
    return message


async def _first(connection: Connection, *, within: float) -> AnyMessage:
    try:
        async with asyncio.timeout(within):
            return await connection.receive()
    except TimeoutError as problem:
        raise HandshakeError(f"{connection.peer} said nothing for {within:g} s") from problem
    except WireError as problem:
        raise HandshakeError(f"{connection.peer} does not speak this protocol") from problem
