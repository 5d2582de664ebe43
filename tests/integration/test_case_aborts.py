"""Who is stopped, by which name, and what the receipt says: real web, Celery, broker and worker.

The model is a double. The cases are those from the field; their numbers are in the docstrings.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.stack import ROOT
from tests.integration.doomed_engine import DoomedEngine
from tests.integration.gateway_server import MODEL
from tests.integration.task_server import TaskServer, serving_tasks
from tests.integration.test_case_disconnects import (
    live_records,
    load_of,
    record_of,
    short_request,
)
from tests.processes import wait_until

pytestmark = pytest.mark.processes

ABORT = "/v1/abort_requests"
LONG = {"max_tokens": 15_000}
SHORT = {"max_tokens": 40}
WAIT = {"Prefer": "wait=20"}
STRANGER = """
from accounts.services import key_create, owner_ensure
_, secret = key_create(owner=owner_ensure(name="elsewhere"), name="stranger", scopes=["infer"])
open({path!r}, "w").write(secret)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[TaskServer]:
    home: Path = tmp_path_factory.mktemp("aborting") / "home"
    urls = f"unix:{home}/run/engine-0.sock,{doomed_url(home)}"
    with serving_tasks(home, step_delay=0.02, HALTLINE_BUS_URL=urls) as running:
        code = STRANGER.format(path=str(home / "stranger.key"))
        command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", code]
        subprocess.run(command, env=running.env, cwd=ROOT, check=True, capture_output=True)
        short_request(running)
        yield running


def doomed_url(home: Path) -> str:
    return f"unix:{home}/run/doomed.sock"


@pytest.fixture(autouse=True)
def back_at_the_baseline(server: TaskServer) -> Iterator[None]:
    """No live record is left, slots and blocks are free again, and a new request succeeds."""
    before = load_of(server)
    yield
    wait_until(lambda: load_of(server) == before, what=f"{load_of(server)} is not {before}")
    wait_until(lambda: not live_records(server), seconds=60, what="a live record is left")
    short_request(server)


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


Answer = Future[httpx.Response]


class Desk:
    """Clients that wait for answers, and calls that stop them."""

    def __init__(self, server: TaskServer, clients: ThreadPoolExecutor) -> None:
        self._server, self._clients = server, clients

    def start(self, *, by: str = "client", name: str = "", **fields: Any) -> Answer:
        """Ask for a completion, and wait until an engine has it."""
        known = len(self._server.engine.running.registry.live)
        answer = self.ask(by=by, name=name, **fields)
        wait_until(lambda: len(self._server.engine.running.registry.live) > known)
        return answer

    def ask(self, *, by: str = "client", name: str = "", **fields: Any) -> Answer:
        body = {"model": MODEL, "prompt": "a", **fields}
        headers = {"X-Request-Id": name} if name else {}
        return self._clients.submit(self._post, "/v1/completions", body, by, headers)

    def abort(self, body: Any, *, by: str = "client", **headers: str) -> httpx.Response:
        return self._post(ABORT, body, by, headers)

    def settled(self, body: Any, *, by: str = "client") -> dict[str, Any]:
        """The receipt, once every target has its outcome."""
        answer = self.abort(body, by=by, **WAIT)
        assert answer.status_code == 200, answer.text
        receipt: dict[str, Any] = answer.json()
        assert receipt["status"] == "done"
        return receipt

    def ids(self) -> list[str]:
        return [key.request_id for key in self._server.engine.running.registry.live]

    def _post(self, path: str, body: Any, by: str, headers: dict[str, str]) -> httpx.Response:
        with self._server.http(by) as http:
            return http.post(path, json=body, headers=headers)


@pytest.fixture
def desk(server: TaskServer, clients: ThreadPoolExecutor) -> Desk:
    return Desk(server, clients)


def ends(answer: Answer) -> list[str]:
    response = answer.result(30)
    assert response.status_code == 200, response.text
    return [choice["finish_reason"] for choice in response.json()["choices"]]


def outcomes(receipt: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["requested_id"], one["outcome"]) for one in receipt["targets"]]


def test_it_stops_an_id_and_not_one_that_begins_like_it(desk: Desk) -> None:
    """Case 2."""
    first, second = desk.start(name="job-1", **LONG), desk.start(name="job-10", **SHORT)
    assert outcomes(desk.settled({"req_ids": ["job-1"]})) == [("job-1", "aborted")]
    assert (ends(first), ends(second)) == (["abort"], ["length"])


BAD: list[bytes] = [
    b"{}",
    b'{"req_ids": []}',
    b'{"req_ids": [""]}',
    b'{"req_ids": [1]}',
    b'{"req_ids": "abcdef"}',
    b'{"abort_all": "false"}',
    b'{"abort_all": false}',
    b'{"stop_all": true}',
    b'{"req_ids": ["a"], "abort_all": true}',
    b'{"filter": {}}',
    b'{"req_ids": ["a"], "tombstone": 301}',
    b'{"req_ids": ["a"], "fence": true}',
    b"not JSON",
    b"",
]


def test_it_refuses_what_is_not_clear_and_stops_nothing(desk: Desk, server: TaskServer) -> None:
    """Case 3."""
    running = [desk.start(**SHORT), desk.start(**SHORT)]
    with server.http("operator") as http:
        for body in BAD:
            headers = {"Content-Type": "application/json"}
            answer = http.post(ABORT, content=body, headers=headers)
            assert answer.status_code == 400, (body, answer.text)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert http.post(ABORT, data={"abort_all": "true"}).status_code == 400
    assert [ends(one) for one in running] == [["length"], ["length"]]


@pytest.mark.parametrize("by", ["internal", "response", "header", "body"])
def test_it_stops_by_every_id_alike(desk: Desk, by: str) -> None:
    """Case 4."""
    names = {"header": {"name": "job-h"}, "body": {"request_id": "job-b"}}
    answer = desk.start(**LONG, **names.get(by, {}))
    (internal,) = desk.ids()
    response_id = f"cmpl-{internal.removeprefix('req_')}"
    ids = {"internal": internal, "response": response_id, "header": "job-h", "body": "job-b"}
    receipt = desk.settled({"request_ids": [ids[by], "job-unknown"], "reason": "enough"})
    assert outcomes(receipt) == [(ids[by], "aborted"), ("job-unknown", "not_found")]
    assert receipt["targets"][0]["request_id"] == internal
    assert receipt["result"]["not_found"] == ["job-unknown"]
    (choice,) = answer.result(30).json()["choices"]
    assert choice["abort"] == {"id": receipt["id"], "cause": "api", "reason": "enough"}


def test_it_does_not_take_an_id_for_a_child_of_another(desk: Desk) -> None:
    """Case 5."""
    parent = desk.start(name="a", n=2, **SHORT)
    other = desk.start(name="a_1", **LONG)
    assert outcomes(desk.settled({"req_ids": ["a_1"]})) == [("a_1", "aborted")]
    assert (ends(parent), ends(other)) == (["length", "length"], ["abort"])


def test_it_lets_nobody_reach_what_is_not_theirs(desk: Desk, server: TaskServer) -> None:
    """Case 7."""
    mine = desk.start(name="mine", **SHORT)
    internal = desk.ids()[0]
    theirs = desk.start(by="stranger", **LONG)
    assert httpx.post(f"{server.url}{ABORT}", json={"abort_all": True}).status_code == 401
    receipt = desk.settled({"req_ids": [internal, "mine"]}, by="stranger")
    assert outcomes(receipt) == [(internal, "not_found"), ("mine", "not_found")]
    with server.http("stranger") as http:
        found, nothing = (http.get(f"/v1/requests/{one}") for one in (internal, f"req_{0:032x}"))
        assert (found.status_code, nothing.status_code) == (404, 404)
        assert http.delete(f"/v1/requests/{internal}").status_code == 404
    receipt = desk.settled({"abort_all": True}, by="stranger")
    assert receipt["counts"]["targets"] == receipt["counts"]["aborted"] == 1
    assert (ends(mine), ends(theirs)) == (["length"], ["abort"])


def test_it_tells_each_outcome_where_one_replica_fails(desk: Desk, server: TaskServer) -> None:
    """Case 8."""
    secret = (server.home / "secrets" / "bus").read_text().strip()
    with DoomedEngine(doomed_url(server.home), secret=secret) as doomed:
        wait_until(lambda: doomed.is_connected)
        first = desk.start(name="ok1", **LONG)
        lost = desk.ask(name="doomed", model=doomed.model, **LONG)
        wait_until(lambda: doomed.has_work)
        second = desk.start(name="ok2", **LONG)
        receipt = desk.settled({"req_ids": ["ok1", "unknown", "doomed", "ok2"]})
    assert outcomes(receipt) == [
        ("ok1", "aborted"),
        ("unknown", "not_found"),
        ("doomed", "engine_lost"),
        ("ok2", "aborted"),
    ]
    assert receipt["targets"][2]["output_token_count"] == doomed.tokens
    assert (ends(first), ends(second)) == (["abort"], ["abort"])
    assert (lost.result(30).status_code, lost.result().json()["error"]["code"]) == (
        503,
        "engine_lost",
    )


def test_it_changes_nothing_about_what_has_finished(desk: Desk, server: TaskServer) -> None:
    """Case 13."""
    answer = desk.ask(name="done", max_tokens=3).result(30)
    record = record_of(server, answer.headers["X-Haltline-Request-Id"])
    for _ in range(2):
        receipt = desk.settled({"req_ids": ["done", record["response_id"]], "reason": "late"})
        assert [outcome for _, outcome in outcomes(receipt)] == ["already_finished"] * 2
        assert (receipt["counts"]["aborted"], receipt["result"]["aborted"]) == (0, [])
        assert receipt["targets"][0]["output_token_count"] == 3
    again = record_of(server, record["id"])
    assert again == record
    assert (again["state"], again["cause"], again["abort_id"]) == ("finished", None, None)


@pytest.mark.parametrize("stream", [True, False])
def test_it_aborts_on_arrival_what_lies_under_a_tombstone(
    desk: Desk, server: TaskServer, stream: bool
) -> None:
    """Case 14."""
    name = f"late-{stream}"
    receipt = desk.settled({"req_ids": [name], "tombstone": 30, "reason": "too late"})
    assert outcomes(receipt) == [(name, "not_found")]
    info = {"id": receipt["id"], "cause": "api", "reason": "too late"}
    steps = server.engine.running.gauge.steps
    answer = desk.ask(name=name, n=2, stream=stream, **LONG).result(30)
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count('"finish_reason":"abort"') == 2
    else:
        choices = answer.json()["choices"]
        assert [(one["finish_reason"], one["text"], one["abort"]) for one in choices] == [
            ("abort", "", info)
        ] * 2
        assert answer.json()["usage"]["completion_tokens"] == 0
    record = record_of(server, answer.headers["X-Haltline-Request-Id"])
    assert (record["state"], record["abort_id"], record["reason"]) == (
        "aborted",
        receipt["id"],
        "too late",
    )
    assert server.engine.running.gauge.steps == steps
    assert ends(desk.ask(name=f"other-{stream}", **SHORT)) == ["length"]


def test_it_runs_what_comes_after_an_abort_without_tombstone(desk: Desk) -> None:
    """Case 14."""
    assert outcomes(desk.settled({"req_ids": ["early"]})) == [("early", "not_found")]
    assert ends(desk.ask(name="early", **SHORT)) == ["length"]


def test_it_keeps_nothing_in_memory_of_ids_that_it_does_not_know(
    desk: Desk, server: TaskServer
) -> None:
    """Case 14: 10 000 of them, after as many for a warm-up."""

    def resident() -> int:
        status = Path(f"/proc/{server.running.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)

    def many(kind: str) -> None:
        for call in range(10):
            ids = [f"{kind}-{call}-{number}" for number in range(1000)]
            receipt = desk.abort({"req_ids": ids, "tombstone": 1}).json()
            assert receipt["counts"]["not_found"] == 1000

    many("warm")
    before = resident()
    many("cold")
    assert resident() <= before * 1.05 + 8 * 1024
    assert len(server.engine.running.registry.early_aborts) == 0


def test_it_refuses_new_work_behind_a_fence_until_it_is_resumed(
    desk: Desk, server: TaskServer
) -> None:
    running = desk.start(**LONG)
    assert desk.abort({"abort_all": True, "fence": True}).status_code == 403
    receipt = desk.settled({"abort_all": True, "fence": True}, by="operator")
    assert receipt["counts"]["aborted"] == 1
    assert ends(running) == ["abort"]
    for stream in (True, False):
        refused = desk.ask(stream=stream, **SHORT).result(30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "fenced")
        assert int(refused.headers["Retry-After"]) > 0
    with server.http() as http:
        assert http.post("/resume").status_code == 403
    with server.http("operator") as http:
        assert http.post("/resume").json() == {"status": "resumed", "fences_lifted": 1}
        assert http.post("/resume").json()["fences_lifted"] == 0
    assert ends(desk.ask(**SHORT)) == ["length"]
