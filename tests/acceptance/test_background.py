"""Background work under the real supervisor: it outlives the processes that carry it."""

from __future__ import annotations

import os
import signal
from typing import Any

import openai
import pytest

from tests.acceptance.stack import Stack
from tests.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
OVER = {"completed", "failed", "cancelled", "incomplete"}


@pytest.fixture
def one_slot(stack: Stack) -> Stack:
    stack.variables["HALTLINE_MAX_RUNNING"] = "1"
    stack.start()
    stack.wait_until_ready()
    return stack


def background(client: openai.OpenAI, model: str, *, tokens: int) -> str:
    started = client.responses.create(
        model=model,
        input="hello",
        background=True,
        max_output_tokens=tokens,
        extra_body={"ignore_eos": True},
    )
    return started.id


def record(stack: Stack, response_id: str) -> dict[str, Any]:
    with stack.http() as http:
        found: dict[str, Any] = http.get(f"/v1/requests/{response_id}").raise_for_status().json()
    return found


def ended(client: openai.OpenAI, response_id: str) -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found.append(client.responses.retrieve(response_id))
        return found[-1].status in OVER

    wait_until(is_over, seconds=90, what="it does not end")
    return found[-1]


def test_it_runs_again_what_its_engine_had_not_begun(one_slot: Stack) -> None:
    client = one_slot.openai()
    (model,) = [one.id for one in client.models.list()]
    running = background(client, model, tokens=100)
    wait_until(lambda: record(one_slot, running)["state"] == "running", what="it does not run")
    waiting = background(client, model, tokens=5)
    wait_until(lambda: record(one_slot, waiting)["prompt_token_count"], what="no engine has it")
    engine = one_slot.service("inference.worker")
    os.kill(engine.pid, signal.SIGKILL)
    lost = ended(client, running)
    assert (lost.status, lost.error.code) == ("failed", "engine_lost")
    last = ended(client, waiting)
    assert (last.status, last.usage.output_tokens) == ("incomplete", 5)
    assert record(one_slot, waiting)["generation"] == 2


def test_it_runs_what_a_task_worker_took_with_it(one_slot: Stack) -> None:
    client = one_slot.openai()
    (model,) = [one.id for one in client.models.list()]
    worker = one_slot.service("tasks --queue work")
    os.kill(worker.pid, signal.SIGSTOP)
    started = background(client, model, tokens=5)
    os.kill(worker.pid, signal.SIGKILL)
    assert ended(client, started).usage.output_tokens == 5
