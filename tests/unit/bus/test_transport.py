"""What a connection promises, on both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference.bus import Connection, ConnectionClosedError
from inference.bus.memory import MemoryConnection
from inference.bus.socket import SocketConnection
from inference.errors import WireError
from inference.wire import Ask, Detokenize, Text

from .conftest import UNREAD_LIMIT, AnyBus

AnyConnection = MemoryConnection | SocketConnection


@asynccontextmanager
async def pair(bus: AnyBus) -> AsyncIterator[tuple[AnyConnection, Connection]]:
    """Both ends of one connection: the client's, then the engine's."""
    arrived: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def hold(connection: Connection) -> None:
        arrived.set_result(connection)
        await over.wait()

    server = await bus.serve(hold)
    near = await bus.connect()
    try:
        yield near, await arrived
    finally:
        over.set()
        await near.close()
        await server.close()


async def drain(connection: Connection) -> None:
    while True:
        await connection.receive()


async def until_closed(connection: Connection) -> None:
    with pytest.raises(ConnectionClosedError):
        await drain(connection)


def flood(connection: Connection) -> None:
    for _ in range(200):
        connection.send(Text(call=1, text="x" * (UNREAD_LIMIT // 16)))


async def test_it_carries_messages_both_ways_in_order(bus: AnyBus) -> None:
    async with pair(bus) as (near, far):
        for number in range(50):
            near.send(Ask(call=number))
            far.send(Text(call=number, text="ü" * number))
        assert [await far.receive() for _ in range(50)] == [Ask(call=n) for n in range(50)]
        last = [await near.receive() for _ in range(50)][-1]
        assert last == Text(call=49, text="ü" * 49)


async def test_it_goes_on_after_a_frame_that_is_no_message(bus: AnyBus) -> None:
    """Case 6."""
    async with pair(bus) as (near, far):
        for rubbish in (b"", b"\xc1", b"abort everything", b"\x93\x01\x02\x03", b"\x81\xa1t\xa2no"):
            near.send_frame(rubbish)
            with pytest.raises(WireError):
                await far.receive()
        near.send(Ask(call=7))
        assert await far.receive() == Ask(call=7)


async def test_it_reports_the_end_after_the_last_message(bus: AnyBus) -> None:
    async with pair(bus) as (near, far):
        near.send(Ask(call=1))
        await near.close()
        assert await far.receive() == Ask(call=1)
        with pytest.raises(ConnectionClosedError):
            await far.receive()


async def test_it_refuses_to_send_and_receive_once_closed(bus: AnyBus) -> None:
    async with pair(bus) as (near, _):
        await near.close()
        await near.close()
        with pytest.raises(ConnectionClosedError):
            near.send(Ask(call=1))
        with pytest.raises(ConnectionClosedError):
            await near.receive()


async def test_it_refuses_to_send_to_a_peer_that_has_gone(bus: AnyBus) -> None:
    async with pair(bus) as (near, far):
        await near.close()
        await until_closed(far)
        with pytest.raises(ConnectionClosedError):
            far.send(Ask(call=1))


async def test_it_cuts_off_a_peer_that_does_not_read(bus: AnyBus) -> None:
    async with pair(bus) as (near, far):
        with pytest.raises(ConnectionClosedError):
            flood(far)
        with pytest.raises(ConnectionClosedError):
            far.send(Ask(call=1))
        await until_closed(near)


async def test_it_loses_nothing_when_a_receive_is_cancelled(bus: AnyBus) -> None:
    async with pair(bus) as (near, far):
        for number in range(20):
            waiting = asyncio.create_task(far.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            near.send(Detokenize(call=number, token_ids=list(range(1000))))
            assert await far.receive() == Detokenize(call=number, token_ids=list(range(1000)))


async def test_it_refuses_to_connect_where_nobody_listens(bus: AnyBus) -> None:
    with pytest.raises(ConnectionError):
        await bus.connect()


async def test_it_refuses_a_second_engine(bus: AnyBus) -> None:
    async def hold(connection: Connection) -> None:
        await until_closed(connection)

    server = await bus.serve(hold)
    with pytest.raises(OSError, match="listens"):
        await bus.serve(hold)
    await server.close()
    await (await bus.serve(hold)).close()


async def test_it_closes_every_connection_with_the_server(bus: AnyBus) -> None:
    async def hold(connection: Connection) -> None:
        await until_closed(connection)

    server = await bus.serve(hold)
    clients = [await bus.connect() for _ in range(3)]
    await asyncio.sleep(0)
    await server.close()
    for client in clients:
        await until_closed(client)


async def test_it_closes_the_connection_whose_handler_fails(
    bus: AnyBus, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(connection: Connection) -> None:
        await connection.receive()
        raise RuntimeError("a fault of the handler")

    server = await bus.serve(fail)
    first, second = await bus.connect(), await bus.connect()
    first.send(Ask(call=1))
    await until_closed(first)
    second.send(Ask(call=1))
    await until_closed(second)
    await server.close()
    assert "a fault of the handler" in caplog.text
