"""`manage.py serve` with the tiny model: starts, restarts, refuses, ends; nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import stat

import httpx
import pytest

from tests.acceptance.stack import Stack, wait_for_end
from tests.processes import descendants_of, processes, wait_until

pytestmark = pytest.mark.processes


def complete(stack: Stack, **body: object) -> dict[str, object]:
    with stack.http() as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        prompt = {"model": model, "prompt": "abc", "max_tokens": 5, "ignore_eos": True, **body}
        answer: dict[str, object] = (
            client.post("/v1/completions", json=prompt).raise_for_status().json()
        )
        return answer


def test_it_keeps_its_data_over_a_restart_and_leaves_no_process(stack: Stack) -> None:
    stack.start()
    stack.wait_until_ready()
    answer = complete(stack)
    for name in ("operator.key", "client.key", "admin.password"):
        assert stat.S_IMODE((stack.home / name).stat().st_mode) == 0o600
    keys = stack.key("operator"), stack.key("client")
    with stack.http() as client:
        before = wait_for_end(client, str(answer["id"]))
    assert stack.end() == 130

    stack.log.unlink()
    stack.start()
    stack.wait_until_ready()
    assert (stack.key("operator"), stack.key("client")) == keys
    assert not any(key in stack.said for key in keys), "secrets are shown once"
    with stack.http() as client:
        again = client.get(f"/v1/requests/{answer['id']}").raise_for_status().json()
    assert again == before
    complete(stack)
    assert stack.end() == 130


@pytest.mark.slow
def test_it_starts_again_what_was_killed(stack: Stack) -> None:
    stack.start()
    stack.wait_until_ready()
    control = "tasks --queue control"  # the second time with a broker that was started again
    for words in ("manage.py web", control, "inference.worker", "valkey-server", control):
        if words == "valkey-server" and "HALTLINE_BROKER_URL" in stack.variables:
            continue
        victim = stack.service(words).pid
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda victim=victim, words=words: stack.service(words).pid != victim,  # type: ignore[misc]
            seconds=60,
            what=f"{words} was not started again:\n{stack.said}",
        )
        wait_until(lambda: stack.is_ready, seconds=120, what=f"not ready again:\n{stack.said}")
        assert complete(stack)["usage"]["completion_tokens"] == 5  # type: ignore[index]
    assert stack.end() == 130


@pytest.mark.slow
def test_it_stops_all_with_the_code_of_what_keeps_dying(stack: Stack) -> None:
    stack.variables["HALTLINE_DEVICE"] = "cuda:99"
    stack.start()
    code = stack.running.wait(180)
    assert code == 1, stack.said
    assert "this machine has no device 'cuda:99'" in stack.said
    assert stack.said.count("| ended with code 1: starting it again in") == 5
    assert stack.said.count("| ended with code 1: stopping all") == 1
    wait_until(lambda: not processes_of(stack))


def test_it_names_a_taken_port_and_starts_nothing(stack: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stack.port = taken.getsockname()[1]
        stack.start()
        assert stack.running.wait(60) == 1
    assert f"port {stack.port} on 127.0.0.1 is taken" in stack.said
    assert "Traceback" not in stack.said
    assert "|" not in stack.said


@pytest.mark.slow
def test_it_refuses_a_second_serve_on_the_same_home(stack: Stack) -> None:
    stack.start()
    stack.wait_until_ready()
    second = Stack(stack.home, **stack.variables)
    second.log = stack.home.parent / "second.log"
    second.start()
    assert second.running.wait(60) == 1
    assert f"already runs on {stack.home} (process {stack.running.pid})" in second.said
    assert httpx.get(f"{stack.url}/health/live").status_code == 200
    assert stack.end() == 130


@pytest.mark.slow
def test_it_leaves_no_process_when_it_is_killed_itself(stack: Stack) -> None:
    stack.start()
    stack.wait_until_ready()
    family = [process.pid for process in descendants_of(stack.running.pid)]
    stack.running.kill()
    stack.running.wait()

    def alive() -> list[str]:
        return [p.command for p in processes() if p.pid in family and not p.is_zombie]

    wait_until(lambda: not alive(), seconds=60, what=f"left: {alive()}")


def processes_of(stack: Stack) -> list[str]:
    """Those that name a file below the stack's home: its broker, for one."""
    return [process.command for process in processes() if str(stack.home) in process.command]
