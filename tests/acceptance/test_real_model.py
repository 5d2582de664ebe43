"""The whole, real processes and real model: chat, stream, abort, receipt, push, console."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionChunk
from websockets.sync.client import connect

from tests.acceptance.stack import ROOT, Stack, wait_for_end, wait_for_receipt
from tests.processes import wait_until

pytestmark = pytest.mark.processes

MODEL = "smollm2-135m-instruct"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = [{"role": "user", "content": "Count from one to ten thousand, one number a line."}]


class LongStream:
    """A stream that would go on for long, read in a thread as a client would."""

    def __init__(self, stack: Stack, **extra: Any) -> None:
        self.chunks: list[ChatCompletionChunk] = []
        self._has_enough = threading.Event()
        self._stream = stack.openai().chat.completions.create(
            model=MODEL,
            messages=COUNT,  # type: ignore[arg-type]
            max_tokens=1500,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, **extra},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: len(self.chunks) > 5, what="no tokens come")

    def _read(self) -> None:
        with self._stream:  # closes the socket
            for chunk in self._stream:
                self.chunks.append(chunk)
                if self._has_enough.is_set():
                    return

    @property
    def id(self) -> str:
        return self.chunks[0].id

    def wait_for_end(self) -> None:
        self._reader.join(30)
        assert not self._reader.is_alive(), "the stream did not end"

    def leave(self) -> None:
        self._has_enough.set()
        self.wait_for_end()

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice.finish_reason for chunk in self.chunks for choice in chunk.choices]
        return next((reason for reason in reversed(reasons) if reason), None)

    @property
    def token_count(self) -> int:
        usages = [chunk.usage for chunk in self.chunks if chunk.usage]
        assert len(usages) == 1
        return usages[0].completion_tokens


def watch(stack: Stack, path: str, messages: list[dict[str, Any]]) -> threading.Thread:
    """Collect what a websocket tells until it closes; returns once the first message is there."""

    def read() -> None:
        url = f"{stack.websocket_url}{path}"
        with connect(url, additional_headers=stack.headers()) as socket:
            messages.extend(json.loads(message) for message in socket)
            messages.append({"type": "closed", "code": socket.protocol.close_code})

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: messages, what=f"{path} says nothing")
    return reader


def test_it_answers_a_chat(real_stack: Stack) -> None:
    answer = real_stack.openai().chat.completions.create(
        model=MODEL,
        messages=CAPITAL,  # type: ignore[arg-type]
        max_tokens=40,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage is not None
    with real_stack.http() as client:
        record = wait_for_end(client, answer.id)
        events = client.get(f"/v1/requests/{answer.id}/events").raise_for_status().json()
    assert record["state"] == "finished"
    assert record["output_token_count"] == answer.usage.completion_tokens
    states = [event["to_state"] for event in events["data"] if event["choice_index"] is None]
    assert states[0] == "received"
    assert states[-1] == "finished"
    assert [event["seq"] for event in events["data"]] == list(range(1, len(events["data"]) + 1))


def test_it_streams_the_same_as_it_answers(real_stack: Stack) -> None:
    client = real_stack.openai()
    ask: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**ask, stream=True))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == whole
    assert len(parts) > 3


def test_it_completes_a_text(real_stack: Stack) -> None:
    answer = real_stack.openai().completions.create(
        model=MODEL, prompt="The opposite of hot is", max_tokens=8, temperature=0
    )
    assert "cold" in answer.choices[0].text
    assert [model.id for model in real_stack.openai().models.list()] == [MODEL]


def test_it_aborts_a_long_stream_and_proves_it(real_stack: Stack) -> None:
    stream = LongStream(real_stack)
    with real_stack.http() as client:
        told: list[dict[str, Any]] = []
        watcher = watch(real_stack, f"/ws/requests/{stream.id}/", told)
        body = {"req_ids": [stream.id], "reason": "enough"}
        accepted = client.post("/v1/abort_requests", json=body)
        assert accepted.status_code == 202
        abort_id = accepted.json()["id"]
        assert accepted.headers["Location"] == f"/v1/aborts/{abort_id}"
        receipts: list[dict[str, Any]] = []
        receipt_watcher = watch(real_stack, f"/ws/aborts/{abort_id}/", receipts)

        stream.wait_for_end()
        receipt = wait_for_receipt(client, abort_id)
        record = wait_for_end(client, stream.id)
    assert stream.finish_reason == "abort"
    target = receipt["targets"][0]
    assert target["outcome"] == "aborted"
    assert target["output_token_count"] == stream.token_count == record["output_token_count"]
    assert 0 < stream.token_count < 1500
    assert (record["state"], record["cause"]) == ("aborted", "api")

    for reader in (watcher, receipt_watcher):
        reader.join(30)
        assert not reader.is_alive()
    assert told[0]["type"] == "snapshot"
    assert '"aborted"' in json.dumps(told[-2])
    assert receipts[0]["type"] == "snapshot"
    assert '"done"' in json.dumps(receipts[-2])
    assert told[-1]["code"] == receipts[-1]["code"] == 1000


def test_it_aborts_what_its_client_leaves(real_stack: Stack) -> None:
    stream = LongStream(real_stack)
    stream.leave()
    with real_stack.http() as client:
        record = wait_for_end(client, stream.id)
    assert (record["state"], record["cause"]) == ("aborted", "client_disconnected")


def test_it_hides_a_request_from_a_client_without_a_key(real_stack: Stack) -> None:
    answer = httpx.get(f"{real_stack.url}/v1/requests")
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.fixture
def console(real_stack: Stack) -> Iterator[httpx.Client]:
    """A member of staff, signed in."""
    with httpx.Client(base_url=real_stack.url, follow_redirects=True, timeout=30) as client:
        page = client.get("/admin/login/")
        password = (real_stack.home / "admin.password").read_text().strip()
        form = {"username": "admin", "password": password, "next": "/admin/"}
        token = client.cookies["csrftoken"]
        headers = {"X-CSRFToken": token, "Referer": real_stack.url}
        page = client.post("/admin/login/", data=form, headers=headers)
        assert page.status_code == 200
        assert "sessionid" in client.cookies, "the sign-in failed"
        yield client


def test_it_shows_a_request_s_life_in_the_console(real_stack: Stack, console: httpx.Client) -> None:
    answer = real_stack.openai().chat.completions.create(
        model=MODEL,
        messages=CAPITAL,  # type: ignore[arg-type]
        max_tokens=5,
    )
    with real_stack.http() as client:
        record = wait_for_end(client, answer.id)
    listing = console.get("/admin/ledger/inferencerequest/")
    assert listing.status_code == 200
    assert record["id"] in listing.text
    page = console.get(f"/admin/ledger/inferencerequest/{record['id']}/change/")
    assert page.status_code == 200
    for state in ("received", "queued", "running", "finished"):
        assert re.search(state, page.text, re.IGNORECASE), f"the timeline lacks {state}"
    assert console.get("/schema/").status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_it_prints_an_example_that_works(real_stack: Stack) -> None:
    example = re.search(r"\| Try it: +(curl .*)", real_stack.said)
    assert example is not None
    done = subprocess.run(
        ["sh", "-c", example[1]], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.rstrip().endswith("data: [DONE]")
