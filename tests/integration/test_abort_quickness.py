"""Quick without Celery, certain with it; and ends that no engine announced reach the client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway_server import MODEL
from tests.integration.task_server import TaskServer, serving_tasks
from tests.processes import wait_until

pytestmark = pytest.mark.processes

LOSE = """
from ledger.models import InferenceRequest
from ledger.services import requests_lose
row = InferenceRequest.objects.get(pk="{}")
requests_lose(replica=row.replica, epoch=row.epoch, received={{row.pk: 0}})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[TaskServer]:
    home: Path = tmp_path_factory.mktemp("quick") / "home"
    with serving_tasks(home, step_delay=0.1) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(server: TaskServer) -> Iterator[None]:
    yield
    wait_until(lambda: server.engine.is_idle, what="the engine still works")


class Stream:
    """One that is read in a thread of its own: `tokens` so far, and every message."""

    def __init__(self, server: TaskServer, **fields: Any) -> None:
        self.messages: list[Any] = []
        self.tokens = 0
        self.request_id = ""
        self._begun = threading.Event()
        body = {"model": MODEL, "prompt": "a", "max_tokens": 9000, "stream": True, **fields}
        self._read = threading.Thread(target=self._run, args=(server, body), daemon=True)
        self._read.start()
        assert self._begun.wait(30)

    def _run(self, server: TaskServer, body: dict[str, Any]) -> None:
        asked = {**body, "return_token_ids": True}
        with server.http() as http, http.stream("POST", "/v1/completions", json=asked) as response:
            self.request_id = response.headers["X-Haltline-Request-Id"]
            self._begun.set()
            self._take(response)

    def _take(self, response: httpx.Response) -> None:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                self.messages.append(json.loads(line.removeprefix("data: ")))
                choices = self.messages[-1].get("choices", ())
                self.tokens += sum(len(one.get("token_ids") or ()) for one in choices)

    def wait(self) -> None:
        self._read.join(30)
        assert not self._read.is_alive()

    @property
    def ends(self) -> list[Any]:
        choices = [one for message in self.messages for one in message.get("choices", ())]
        return [one for one in choices if one["finish_reason"]]


def test_it_stops_a_stream_within_a_step_while_no_task_runs(server: TaskServer) -> None:
    """The web process sends the abort itself; the receipt settles once a worker is back."""
    server.stop_worker("control")
    try:
        stream = Stream(server)
        wait_until(lambda: stream.tokens >= 3)
        with server.http() as http:
            order = {"req_ids": [stream.request_id], "reason": "enough"}
            answer = http.post("/v1/abort_requests", json=order)
            known, steps = stream.tokens, server.engine.running.gauge.steps
            stream.wait()
            assert answer.status_code == 202
            receipt = http.get(answer.headers["Location"]).json()
            record = http.get(f"/v1/requests/{stream.request_id}").json()
        # The step that ran when the answer came may still bring one.
        assert stream.tokens <= known + 1
        assert server.engine.running.gauge.steps <= steps + 1
        (end,) = stream.ends
        expected = {"id": receipt["id"], "cause": "api", "reason": "enough"}
        assert (end["finish_reason"], end["abort"]) == ("abort", expected)
        assert (receipt["status"], receipt["counts"]["pending"]) == ("accepted", 1)
        assert record["state"] == "aborting"
    finally:
        server.start_worker("control")
    settled = settled_receipt(server, receipt["id"])
    (target,) = settled["targets"]
    assert (target["outcome"], target["output_token_count"]) == ("aborted", stream.tokens)


def settled_receipt(server: TaskServer, abort_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_done() -> bool:
        with server.http() as http:
            found.update(http.get(f"/v1/aborts/{abort_id}").raise_for_status().json())
        return bool(found["status"] == "done")

    wait_until(is_done, seconds=60, what=f"no receipt: {found}")
    return found


def test_it_ends_a_stream_whose_request_ended_in_the_record_alone(server: TaskServer) -> None:
    """Here the ledger gives up an engine that still works: it is told to stop, too."""
    stream = Stream(server)
    wait_until(lambda: stream.tokens >= 3)
    server.manage("shell", "-c", LOSE.format(stream.request_id))
    stream.wait()
    (end,) = stream.ends
    assert end["finish_reason"] == "error"
    assert stream.messages[-1]["error"]["code"] == "engine_lost"
    assert stream.messages[-1]["error"]["request_id"] == stream.request_id
