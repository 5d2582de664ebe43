"""Clients that leave or do not read: real web, Celery, broker and worker; the model is a double."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inference.bus import client as bus
from inference.wire import Status
from inference.worker.request import Request, Stage
from tests.integration.gateway_server import MODEL, SLOTS
from tests.integration.raw_client import Leave, ask, finish, reset
from tests.integration.task_server import TaskServer, serving_tasks
from tests.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LONG_PROMPT = "x" * 15_000
LIVE = ("received", "held", "queued", "running", "preempted", "aborting")


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[TaskServer]:
    home: Path = tmp_path_factory.mktemp("leaving") / "home"
    with serving_tasks(home, step_delay=0.02, HALTLINE_SEND_TIMEOUT="2") as running:
        short_request(running)
        yield running


@pytest.fixture(autouse=True)
def back_at_the_baseline(server: TaskServer) -> Iterator[None]:
    """No live record is left, slots and blocks are free again, and a new request succeeds."""
    before = load_of(server)
    yield
    wait_until(lambda: load_of(server) == before, what=f"{load_of(server)} is not {before}")
    assert not server.engine.running.registry.live
    wait_until(lambda: not live_records(server), seconds=60, what="a live record is left")
    short_request(server)


def load_of(server: TaskServer) -> tuple[int, ...]:
    """Running, waiting, free slots, free blocks."""
    config = server.engine.running.config
    status: Status = bus.ask(config.bus_url, secret=config.bus_secret)
    return (status.running, status.waiting, status.free_slots, status.free_blocks)


def live_records(server: TaskServer) -> list[Any]:
    with server.http() as http:
        pages = [http.get("/v1/requests", params={"state": state}).json() for state in LIVE]
    return [one for page in pages for one in page["data"]]


def short_request(server: TaskServer) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
    assert answer.status_code == 200


def live(server: TaskServer) -> list[Request]:
    return list(server.engine.running.registry.live.values())


def soon(condition: Any, *, seconds: float = 30.0) -> None:
    """As `wait_until`, but quick enough not to miss a phase."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)


def record_of(server: TaskServer, request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_over() -> bool:
        with server.http() as http:
            found.update(http.get(f"/v1/requests/{request_id}").raise_for_status().json())
        return found["finished_at"] is not None

    wait_until(is_over, what=f"it does not end: {found}")
    return found


class Occupied:
    """All slots are taken, as long as this is open."""

    def __init__(self, server: TaskServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        self._hogs = [ask(self._server, stream=True) for _ in range(SLOTS)]
        soon(lambda: len(self._server.engine.running.registry.running) == SLOTS)

    def __exit__(self, *_: object) -> None:
        for hog in self._hogs:
            hog.close()


def newest(server: TaskServer, known: set[str]) -> Request:
    """The request that came after those."""
    found: list[Request] = []
    soon(lambda: found.extend(r for r in live(server) if r.key.request_id not in known) or found)
    return found[0]


def known_ids(server: TaskServer) -> set[str]:
    return {request.key.request_id for request in live(server)}


def leave_and_wait(client: socket.socket, leave: Leave, request: Request) -> None:
    began = time.monotonic()
    leave(client)
    soon(lambda: request.is_ended, seconds=5.0)
    assert time.monotonic() - began < 1.0


def check_record(server: TaskServer, request: Request) -> dict[str, Any]:
    found = record_of(server, request.key.request_id)
    assert (found["state"], found["cause"]) == ("aborted", "client_disconnected")
    assert found["output_token_count"] == request.output_tokens
    return found


LEAVINGS = pytest.mark.parametrize("leave", [finish, reset], ids=["FIN", "RST"])
STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@LEAVINGS
@STREAMS
def test_it_stops_a_queued_one_whose_client_leaves(
    server: TaskServer, stream: bool, leave: Leave
) -> None:
    """Cases 25 and 16: it was never started, also after its slot came free."""
    with Occupied(server):
        known = known_ids(server)
        client = ask(server, stream=stream)
        request = newest(server, known)
        soon(lambda: request.stage is Stage.QUEUED)
        leave_and_wait(client, leave, request)
    found = check_record(server, request)
    assert (found["first_scheduled_at"], found["output_token_count"]) == (None, 0)


@LEAVINGS
@STREAMS
def test_it_stops_one_in_prefill_whose_client_leaves(
    server: TaskServer, stream: bool, leave: Leave
) -> None:
    """Case 25: between two chunks of its prompt, so without a token."""
    # Another beginning each time: what is cached needs no prefill.
    client = ask(server, stream=stream, prompt=f"{random.random()}{LONG_PROMPT}", max_tokens=100)
    request = newest(server, set())
    soon(lambda: request.stage is Stage.RUNNING)
    leave_and_wait(client, leave, request)
    found = check_record(server, request)
    assert found["first_scheduled_at"] is not None
    assert (found["first_token_at"], found["output_token_count"]) == (None, 0)


@LEAVINGS
@STREAMS
def test_it_stops_one_that_decodes_whose_client_leaves(
    server: TaskServer, stream: bool, leave: Leave
) -> None:
    """Case 25."""
    client = ask(server, stream=stream, n=2)
    request = newest(server, set())
    soon(lambda: request.output_tokens > 4)
    leave_and_wait(client, leave, request)
    found = check_record(server, request)
    assert found["output_token_count"] > 4
    assert [one["finish_reason"] for one in found["choices"]] == ["abort", "abort"]


@pytest.mark.slow
def test_it_keeps_nothing_of_a_thousand_clients_that_leave_at_once(
    server: TaskServer, rounds: int
) -> None:
    """Case 19: 0 to 5 ms after sending, with FIN and RST, streaming and not."""
    for _ in range(2):  # as many at a time as later, so that the process has its full size
        leave_at_once(server, count=500)
        settle(server)
    before = resident_mebibytes(server.running.pid)
    for _ in range(2 * rounds):
        leave_at_once(server, count=500)
        settle(server)
    after = resident_mebibytes(server.running.pid)
    assert after <= max(before * 1.05, before + 8.0), f"{before:.0f} MiB became {after:.0f}"


def leave_at_once(server: TaskServer, *, count: int) -> None:
    def come_and_go(number: int) -> None:
        client = ask(server, stream=number % 2 == 0)
        time.sleep(0.001 * (number % 6))
        (reset if number % 4 < 2 else finish)(client)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(count)))


def settle(server: TaskServer) -> None:
    """A new request is served after all that came before it."""
    short_request(server)
    wait_until(lambda: server.engine.is_idle, seconds=60)
    wait_until(lambda: not live_records(server), seconds=60, what="a live record is left")


def resident_mebibytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.slow
def test_it_cuts_off_a_client_that_never_reads(server: TaskServer) -> None:
    """Case 22: memory stays bounded until the send timeout, then the cause is `slow_consumer`."""
    before = resident_mebibytes(server.running.pid)
    most = [before]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            most.append(resident_mebibytes(server.running.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    # Four choices with log probabilities fill the buffers between here and there within seconds.
    client = ask(server, receive_buffer=2048, stream=True, n=4, logprobs=20)
    try:
        request = newest(server, set())
        wait_until(lambda: request.is_ended, seconds=120)
    finally:
        over.set()
        watcher.join()
    found = record_of(server, request.key.request_id)
    assert (found["state"], found["cause"]) == ("aborted", "slow_consumer")
    assert found["output_token_count"] == request.output_tokens < 4 * 15_000
    assert max(most) < before + 64.0
    client.close()
