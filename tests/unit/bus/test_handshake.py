"""Who may talk to an engine, and the short conversations of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference.bus import Connection, client
from inference.bus.handshake import HandshakeError, greet, welcome
from inference.bus.memory import MemoryBus
from inference.bus.socket import SocketBus
from inference.errors import NotFoundError
from inference.generation import AbortCause, SamplingParams
from inference.wire import (
    VERSION,
    Abort,
    Aborted,
    AbortInfo,
    Accepted,
    Ask,
    CallFailed,
    Hello,
    Release,
    ReleaseOutcome,
    RequestKey,
    Submit,
    TextPrompt,
    Welcome,
)

from .conftest import AnyBus

GREETING = Welcome(version=VERSION, replica="engine-0", epoch="e1", model="m", max_model_len=64)
KEY = RequestKey("req_1", 1)


async def test_it_greets(bus: AnyBus) -> None:
    names: list[str] = []

    async def serve(connection: Connection) -> None:
        names.append((await welcome(connection, answer=GREETING, secret="s")).client)

    server = await bus.serve(serve)
    connection = await bus.connect()
    assert await greet(connection, client="web-1", secret="s") == GREETING
    assert names == ["web-1"]
    await connection.close()
    await server.close()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (Hello(version=VERSION, client="web", secret="wrong"), "secret"),
        (Hello(version=VERSION, client="web"), "secret"),
        (Hello(version=99, client="web", secret="s"), "version"),
        (Ask(call=1), "hello"),
    ],
)
async def test_it_says_why_it_refuses(bus: AnyBus, first: Hello | Ask, reason: str) -> None:
    async def serve(connection: Connection) -> None:
        await welcome(connection, answer=GREETING, secret="s")

    server = await bus.serve(serve)
    connection = await bus.connect()
    connection.send(first)
    assert reason in getattr(await connection.receive(), "reason", "")
    with pytest.raises(ConnectionError):
        await connection.receive()
    await connection.close()
    await server.close()


async def test_it_gives_the_engines_reason_to_the_client(bus: AnyBus) -> None:
    async def serve(connection: Connection) -> None:
        await welcome(connection, answer=GREETING, secret="s")

    server = await bus.serve(serve)
    connection = await bus.connect()
    with pytest.raises(HandshakeError, match="HALTLINE_BUS_SECRET"):
        await greet(connection, client="web")
    await connection.close()
    await server.close()


async def test_it_waits_for_a_greeting_only_so_long(bus: AnyBus) -> None:
    outcome: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def serve(connection: Connection) -> None:
        try:
            await welcome(connection, answer=GREETING, within=0.05)
        except HandshakeError as problem:
            outcome.set_result(problem)

    server = await bus.serve(serve)
    connection = await bus.connect()
    assert "nothing" in str(await outcome)
    await connection.close()
    await server.close()


async def answer_all(connection: Connection) -> None:
    """An engine that releases all, accepts all, and cannot tell its load."""
    await welcome(connection, answer=GREETING)
    while True:
        match await connection.receive():
            case Abort(keys=keys):
                releases = [Release(key, ReleaseOutcome.RELEASED) for key in keys]
                connection.send(Aborted(epoch="e1", releases=releases))
            case Submit(key=key):
                connection.send(Accepted(key=key, epoch="e1", prompt_tokens=[1]))
            case Ask(call=number):
                connection.send(CallFailed(call=number, code="not_found", message="no load here"))


@contextmanager
def engine(url: str) -> Iterator[None]:
    """`answer_all` behind a real socket, in a thread with an event loop of its own."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        server = await SocketBus(url).serve(answer_all)
        ready.set()
        await asyncio.to_thread(over.wait)
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_it_lets_a_task_abort_and_submit_without_a_loop(folder: Path) -> None:
    url = f"unix:{folder}/engine.sock"
    info = AbortInfo(id="abt_1", cause=AbortCause.API)
    background = Submit(
        key=KEY, model="m", prompts=[TextPrompt("x")], params=SamplingParams(), attached=False
    )
    with engine(url):
        assert client.abort(url, keys=[KEY], info=info) == [Release(KEY, ReleaseOutcome.RELEASED)]
        accepted = client.submit(url, submission=background)
        assert accepted == Accepted(key=KEY, epoch="e1", prompt_tokens=[1])
        with pytest.raises(NotFoundError, match="no load here"):
            client.ask(url)


def test_it_gives_a_task_a_clear_error_where_no_engine_is(folder: Path) -> None:
    info = AbortInfo(cause=AbortCause.API)
    with pytest.raises(ConnectionError, match="no engine answers"):
        client.abort(f"unix:{folder}/none.sock", keys=[KEY], info=info)


def test_it_refuses_to_submit_attached_work_in_a_short_conversation(folder: Path) -> None:
    attached = Submit(key=KEY, model="m", prompts=[TextPrompt("x")], params=SamplingParams())
    with pytest.raises(ValueError, match="attached"):
        client.submit(f"unix:{folder}/none.sock", submission=attached)


async def test_it_does_not_wait_for_an_engine_that_is_silent() -> None:
    bus = MemoryBus()

    async def silent(connection: Connection) -> None:
        await welcome(connection, answer=GREETING)
        await asyncio.Event().wait()

    server = await bus.serve(silent)
    with pytest.raises(ConnectionError, match="did not answer"):
        await client.call(bus, Ask(call=1), CallFailed, within=0.05)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await server.close()
