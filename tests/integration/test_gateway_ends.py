"""How streams and their clients end: by leaving, by an abort, by not reading, by SIGTERM."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.bus import client as bus
from inference.generation import AbortCause
from inference.wire import AbortInfo, RequestKey
from tests.integration.gateway_server import MODEL, SLOTS, WebServer, serving
from tests.processes import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(
    scope="module",
    params=["1", pytest.param("0", marks=pytest.mark.slow)],
    ids=["eager", "usual"],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[WebServer]:
    home: Path = tmp_path_factory.mktemp("web") / "home"
    variables = {"HALTLINE_EAGER_SEND": request.param, "HALTLINE_SEND_TIMEOUT": "1"}
    with serving(home, step_delay=0.002, **variables) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(server: WebServer) -> Iterator[None]:
    yield
    wait_until(lambda: server.engine.is_idle, what="the engine still works")
    with server.http() as http:
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
    assert answer.status_code == 200


def ask(server: WebServer, *, receive_buffer: int = 0, **fields: Any) -> socket.socket:
    """A raw socket on which a completion was asked for."""
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 15_000, **fields}).encode()
    found = socket.socket()
    if receive_buffer:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    found.connect(("127.0.0.1", server.port))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {server.key()}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    found.sendall(head.encode() + body)
    return found


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def live(server: WebServer) -> list[RequestKey]:
    return list(server.engine.running.registry.live)


def causes(server: WebServer) -> list[str]:
    """Of all choices that were aborted, by what the worker would tell the ledger."""
    ends = [
        entry.choice_end
        for event in server.engine.running.publisher.waiting
        for entry in event.timeline
    ]
    return [end.abort.cause for end in ends if end is not None and end.abort is not None]


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("stream", [True, False])
def test_it_stops_when_the_client_leaves(server: WebServer, stream: bool, leave: Any) -> None:
    client = ask(server, stream=stream)
    wait_until(lambda: live(server))
    began = time.monotonic()
    leave(client)
    wait_until(lambda: server.engine.is_idle)
    assert time.monotonic() - began < 1.0
    wait_until(lambda: causes(server)[-1:] == [AbortCause.CLIENT_DISCONNECTED])


def test_it_stops_a_queued_one_when_its_client_leaves(server: WebServer) -> None:
    hogs = [ask(server, stream=True) for _ in range(SLOTS)]
    wait_until(lambda: len(live(server)) == SLOTS)
    before = set(live(server))
    waiting = ask(server, stream=False)
    wait_until(lambda: len(live(server)) == SLOTS + 1)
    reset(waiting)
    wait_until(lambda: set(live(server)) == before, seconds=1.0)
    for hog in hogs:
        hog.close()


def test_it_keeps_nothing_of_clients_that_leave_at_once(server: WebServer) -> None:
    for number in range(40):
        client = ask(server, stream=number % 2 == 0)
        time.sleep(0.001 * (number % 6))
        reset(client)
    wait_until(lambda: server.engine.is_idle)


def stop(server: WebServer, key: RequestKey) -> None:
    info = AbortInfo(id="abt_1", cause=AbortCause.API, reason="enough")
    secret = (server.home / "secrets" / "bus").read_text().strip()
    url = server.engine.running.config.bus_url
    assert bus.abort(url, keys=[key], info=info, secret=secret)


def lines_of(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            said = line.removeprefix("data: ")
            yield said if said == "[DONE]" else json.loads(said)


def test_it_tells_a_stream_that_it_was_aborted(server: WebServer) -> None:
    body = {"model": MODEL, "prompt": "a", "n": 2, "max_tokens": 9000, "stream": True}
    asked = {**body, "stream_options": {"include_usage": True}, "return_token_ids": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=asked) as response:
        said = []
        for message in lines_of(response):
            said.append(message)
            if len(said) == 6:
                stop(server, live(server)[0])
    assert said[-1] == "[DONE]"
    ends = [m["choices"][0] for m in said[:-2] if m["choices"][0]["finish_reason"]]
    assert {end["index"] for end in ends} == {0, 1}
    assert ends[0]["abort"] == {"id": "abt_1", "cause": "api", "reason": "enough"}
    counted = sum(len(m["choices"][0]["token_ids"]) for m in said[:-2])
    assert said[-2]["usage"]["completion_tokens"] == counted


def test_it_ends_a_stream_that_never_had_a_token(server: WebServer) -> None:
    hogs = [ask(server, stream=True) for _ in range(SLOTS)]
    wait_until(lambda: len(live(server)) == SLOTS)
    before = set(live(server))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "stream": True}
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = lines_of(response)
        first = next(lines)
        assert first["choices"][0]["delta"]["role"] == "assistant"
        (mine,) = set(live(server)) - before
        stop(server, mine)
        terminal, done = list(lines)
    assert terminal["choices"][0]["finish_reason"] == "abort"
    assert terminal["choices"][0]["delta"] == {}
    assert done == "[DONE]"
    for hog in hogs:
        hog.close()


def test_it_answers_an_aborted_one_with_what_there_is(server: WebServer) -> None:
    client = ask(server, stream=False, return_token_ids=True)
    wait_until(lambda: live(server) and server.engine.running.registry.running)
    stop(server, live(server)[0])
    answer = client.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    choice = json.loads(body)["choices"][0]
    assert (choice["finish_reason"], choice["abort"]["cause"]) == ("abort", "api")
    assert len(choice["text"]) == len(choice["token_ids"])


def test_it_gives_a_slow_reader_every_token(server: WebServer) -> None:
    client = ask(server, receive_buffer=4096, stream=True, max_tokens=1500, return_token_ids=True)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        part = client.recv(2048)
        assert part, got[-300:]
        got += part
        if len(got) % 7 == 0:
            time.sleep(0.01)
    lines = [line for line in _unchunked(got).split(b"\n") if line.startswith(b"data: {")]
    ids = [i for line in lines for i in json.loads(line[6:])["choices"][0]["token_ids"]]
    assert len(ids) == 1500


def _unchunked(response: bytes) -> bytes:
    rest = response.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


def test_it_cuts_off_a_client_that_does_not_read(server: WebServer) -> None:
    # Logprobs make the stream large enough to fill the buffers on the way.
    client = ask(server, receive_buffer=2048, stream=True, logprobs=20, n=4)
    wait_until(lambda: live(server))
    wait_until(lambda: server.engine.is_idle, seconds=60)
    wait_until(lambda: causes(server)[-1:] == [AbortCause.SLOW_CONSUMER])
    client.close()


def test_it_drains_on_sigterm(server: WebServer) -> None:
    """What can end does; the rest is told that it was stopped, and the process ends with 0."""
    short = ask(server, stream=True, max_tokens=100)
    long = ask(server, stream=True)
    waiting = ask(server, stream=False)
    wait_until(lambda: len(live(server)) == 3)
    began = time.monotonic()
    server.running.send_signal(signal.SIGTERM)
    ends = [client.makefile("rb").read() for client in (short, long, waiting)]
    assert server.running.wait(10) == 0
    assert time.monotonic() - began < 6.0
    assert b'"finish_reason":"length"' in ends[0]
    assert b'"cause":"shutdown"' in ends[1]
    assert ends[1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b'"cause":"shutdown"' in ends[2]
    server.start_web()


def test_it_serves_again_after_the_engine_was_away(server: WebServer) -> None:
    server.engine.stop()
    with server.http() as http:
        wait_until(lambda: http.get("/health").status_code == 503)
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert "Retry-After" in answer.headers
        server.engine.start()
        wait_until(lambda: http.get("/health").status_code == 200)
