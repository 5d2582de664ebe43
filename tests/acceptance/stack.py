"""The real processes, started as a user starts them: `manage.py serve` in a home of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.processes import Process, descendants_of, is_gone, wait_until

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN = 180.0
ENDS_WITHIN = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _inherited() -> dict[str, str]:
    """What a user's shell would pass on: nothing that the tests have set for themselves."""
    ours = ("HALTLINE_", "DJANGO_", "DATABASE_URL", "OMP_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class Stack:
    """One `manage.py serve` and what a client, a watcher or an operator sees of it."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.port = free_port()
        self.variables = {"HALTLINE_GRACE": "5", **variables}
        self.log = home.parent / f"{home.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def key(self, name: str = "client") -> str:
        return (self.home / f"{name}.key").read_text().strip()

    def headers(self, name: str = "client") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key(name)}"}

    def http(self, name: str = "client") -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers(name), timeout=60)

    def openai(self, name: str = "client") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key(name), max_retries=0)

    def start(self) -> None:
        """In a session of its own, so that a Ctrl-C at the tests does not reach it."""
        own = {"HALTLINE_HOME": str(self.home), "HALTLINE_PORT": str(self.port)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "serve"],
                env={**_inherited(), **own, **self.variables},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        began = time.monotonic()
        while not self.is_announced:
            assert self.running.poll() is None, f"it ended early:\n{self.said}"
            assert time.monotonic() - began < READY_WITHIN, f"it is not ready:\n{self.said}"
            time.sleep(0.1)

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_announced(self) -> bool:
        return "| Ctrl-C ends everything." in self.said

    @property
    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def service(self, words: str) -> Process:
        """The child whose command has these words."""
        wait_until(lambda: self._services(words), seconds=60, what=f"no {words!r} runs")
        return self._services(words)[0]

    def _services(self, words: str) -> list[Process]:
        mine = descendants_of(self.running.pid)
        return [child for child in mine if words in child.command and not child.is_zombie]

    def end(self) -> int:
        """Ctrl-C; checks that no process is left. Gives the exit code."""
        family = descendants_of(self.running.pid)
        self.running.send_signal(signal.SIGINT)
        code = self.running.wait(ENDS_WITHIN)
        left = [process for process in family if not is_gone(process.pid)]
        assert left == [], self.said
        return code

    def kill(self) -> None:
        """Whatever a failed test has left behind."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            for child in descendants_of(self.process.pid):
                os.kill(child.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


@contextmanager
def running(home: Path, **variables: str) -> Iterator[Stack]:
    stack = Stack(home, **variables)
    stack.start()
    try:
        stack.wait_until_ready()
        yield stack
    finally:
        stack.kill()


def wait_for_receipt(client: httpx.Client, abort_id: str) -> dict[str, Any]:
    """The receipt of an abort, once every target has its outcome."""
    found: dict[str, Any] = {}

    def is_done() -> bool:
        found.update(client.get(f"/v1/aborts/{abort_id}").raise_for_status().json())
        return found["status"] == "done"

    wait_until(is_done, what=f"no receipt: {found}")
    return found


def wait_for_end(client: httpx.Client, request_id: str) -> dict[str, Any]:
    """The record of a request, once it has ended."""
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(client.get(f"/v1/requests/{request_id}").raise_for_status().json())
        return found["finished_at"] is not None

    wait_until(is_over, what=f"it does not end: {found}")
    return found
