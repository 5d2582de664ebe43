"""The real engine process, with a tiny model in torch, over a real socket and a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import redis

from inference.bus.handshake import greet
from inference.bus.socket import SocketBus
from inference.events import beat_from_json, events_from_json
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import RequestKey
from tests.doubles.tiny_llama import write_tiny_llama
from tests.doubles.worker_harness import Client, submission

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
A, B = RequestKey("req_a", 1), RequestKey("req_b", 1)
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="hl-") as name:
        write_tiny_llama(Path(name) / "tiny")
        yield Path(name)


def environment(home: Path, **settings: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HALTLINE_HOME": str(home),
        "HALTLINE_MODEL": str(home / "tiny"),
        "HALTLINE_DTYPE": "float32",
        "HALTLINE_DEVICE": "cpu",
        "HALTLINE_THREADS": "1",
        "HALTLINE_KV_TOKENS": "4096",
        **settings,
    }


async def start(home: Path, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "inference.worker", env=environment(home, **settings),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(START_SECONDS):
        return (await process.stderr.read()).decode()


async def until_ready(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(START_SECONDS):
        while b"serves tiny" not in (line := await process.stderr.readline()):
            assert line, "the engine process ended"


@asynccontextmanager
async def engine(home: Path, **settings: str) -> AsyncIterator[tuple[int, Client]]:
    """Its pid and a client; it ends by SIGTERM, in order."""
    process = await start(home, **settings)
    try:
        await until_ready(process)
        connection = await SocketBus(f"unix:{home}/run/engine-0.sock").connect()
        await greet(connection, client="web")
        client = Client(connection)
        yield process.pid, client
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
        await client.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_serves_and_ends_in_order_with_work_running(home: Path) -> None:
    """Case 37, in the engine."""
    async with engine(home, HALTLINE_GRACE="0.2", HALTLINE_STEP_DELAY="0.02") as (pid, web):
        await web.submitted(submission(A, max_tokens=8, temperature=0.0))
        assert (await web.end(A)).finish_reason is FinishReason.LENGTH
        assert len(web.text(A)) == 8
        await web.submitted(submission(B, max_tokens=400, ignore_eos=True))
        await web.has_tokens(B, 3)
        os.kill(pid, signal.SIGTERM)
        end = await web.end(B)
        assert end.abort is not None
        assert end.abort.cause is AbortCause.SHUTDOWN
        await web.until(lambda: web.is_closed)
    assert not (home / "run" / "engine-0.sock").exists()


async def test_it_tells_the_ledger_through_the_broker(home: Path, broker: str) -> None:
    async with engine(home, HALTLINE_BROKER_URL=broker) as (_, web):
        await web.submitted(submission(A, max_tokens=3, temperature=0.0))
        await web.end(A)
    tasks = await asyncio.to_thread(take_tasks, broker)
    events = [
        event for name, [argument] in tasks if name == "ledger.tasks.events_record"
        for event in events_from_json(argument)
    ]  # fmt: skip
    assert [entry.trigger for entry in events[-1].timeline] == [Trigger.SCHEDULE, Trigger.FINISH]
    end = events[-1].timeline[-1].choice_end
    assert end is not None
    assert end.token_ids == web.tokens(A)
    beats = [argument for name, [argument] in tasks if name == "ledger.tasks.replica_beat"]
    assert beat_from_json(beats[0]).status.model == "tiny"


def take_tasks(broker: str) -> list[tuple[str, list[object]]]:
    """What lies in Celery's `control` queue: names and arguments, oldest first."""
    with redis.Redis.from_url(broker) as client:
        frames = cast("list[bytes]", client.lrange("control", 0, -1))
    messages = [json.loads(frame) for frame in reversed(frames)]
    return [
        (message["headers"]["task"], json.loads(b64decode(message["body"]))[0])
        for message in messages
    ]


async def test_it_refuses_an_address_that_is_taken(home: Path) -> None:
    async with engine(home):
        second = await start(home)
        assert "another process listens there" in await said(second)
        assert await second.wait() == 1


async def test_it_ends_when_its_parent_does(home: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'inference.worker'],"
        " env={**os.environ, 'HALTLINE_PARENT_PID': str(os.getpid())}, stderr=subprocess.PIPE)\n"
        "while b'serves' not in child.stderr.readline(): pass\n"
    )
    parent = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], env=environment(home), check=False
    )
    assert parent.returncode == 0
    path = home / "run" / "engine-0.sock"
    async with asyncio.timeout(20):
        while path.exists():  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.05)
