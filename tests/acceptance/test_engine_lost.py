"""An engine that is killed under its clients: what ran ends truthfully, what waited runs again."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import httpx
import pytest

from tests.acceptance.stack import Stack, wait_for_end
from tests.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Asked(threading.Thread):
    """A completion in a thread of its own; `lines` of what came, and the status."""

    def __init__(self, stack: Stack, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._body = {"prompt": "abc", "ignore_eos": True, **fields}
        self.lines: list[str] = []
        self.status = 0
        self.start()

    def run(self) -> None:
        with self._stack.http() as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, **self._body}
            with client.stream("POST", "/v1/completions", json=body) as response:
                self.status = response.status_code
                self.lines += [line for line in response.iter_lines() if line]

    def answer(self) -> list[Any]:
        self.join(120)
        assert not self.is_alive(), self._stack.said
        found = [line.removeprefix("data: ") for line in self.lines if line != "data: [DONE]"]
        return [json.loads(line) for line in found if line.startswith("{")]


def records(client: httpx.Client, state: str) -> list[Any]:
    found: list[Any] = client.get("/v1/requests", params={"state": state}).json()["data"]
    return found


def test_it_ends_what_ran_and_runs_again_what_waited(stack: Stack) -> None:
    """Case 36, of an engine: every client gets its end, and the record says the same."""
    stack.variables["HALTLINE_MAX_RUNNING"] = "1"
    stack.start()
    stack.wait_until_ready()
    running = Asked(stack, stream=True, max_tokens=1500, return_token_ids=True)
    with stack.http() as client:
        wait_until(lambda: records(client, "running"))
        waiting = [Asked(stack, stream=stream, max_tokens=4) for stream in (True, False)]
        wait_until(lambda: len(records(client, "queued")) == 2)
        queued = [one["id"] for one in records(client, "queued")]
        (ran,) = records(client, "running")
        os.kill(stack.service("inference.worker").pid, signal.SIGKILL)

        *told, failure = running.answer()
        record = wait_for_end(client, ran["id"])
        tokens = [token for one in told for token in one["choices"][0].get("token_ids") or ()]
        assert told[-1]["choices"][0]["finish_reason"] == "error"
        assert failure["error"]["code"] == "engine_lost"
        assert failure["error"]["request_id"] == ran["id"]
        assert (record["state"], record["error"]["code"]) == ("failed", "engine_lost")
        assert record["choices"][0]["token_ids"] == tokens
        assert record["output_token_count"] == len(tokens)

        for asked in waiting:
            assert asked.answer()[-1]["choices"][0]["finish_reason"] == "length"
            assert asked.status == 200
        for request_id in queued:
            record = wait_for_end(client, request_id)
            assert (record["state"], record["generation"]) == ("finished", 2)
    assert stack.end() == 130
