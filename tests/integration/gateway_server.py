"""A real web process in front of a real worker whose model is a double: HTTP in, tokens out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai

from inference.bus.socket import SocketBus
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.worker.config import WorkerConfig, from_environ
from inference.worker.ledger_events import CelerySender, Publisher
from inference.worker.process import ReadyEngine, Worker
from tests.acceptance.stack import ROOT, free_port
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.fake_runner import FakeRunner
from tests.processes import wait_until

MODEL = "tiny"
SLOTS = 4
LONGEST = 20_000


class EngineThread:
    """The worker, in a thread of the test process, at a unix socket below `home`.

    `broker_url`: where it tells the ledger what happens; None: nowhere.
    """

    def __init__(self, home: Path, *, step_delay: float) -> None:
        self._home, self._delay = home, step_delay
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self.worker: Worker | None = None
        self.broker_url: str | None = None

    @property
    def running(self) -> Worker:
        assert self.worker is not None
        return self.worker

    @property
    def is_idle(self) -> bool:
        return not self.running.registry.live

    def start(self) -> None:
        self._ready.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self.running.drain(0.0)
        assert self._thread is not None
        self._thread.join(10)

    async def _run(self) -> None:
        config = self._config()
        runner = FakeRunner(block_size=config.engine.block_size)
        engine = Engine(config.engine, runner, ByteTokenizer())
        ready = ReadyEngine(engine=engine, tokenizer=ByteTokenizer(), max_model_len=LONGEST)
        sender = CelerySender(self.broker_url) if self.broker_url is not None else None
        self.worker = Worker(config, ready, publisher=Publisher(sender))
        await self.worker.start(SocketBus(config.bus_url))
        self._ready.set()
        await self.worker.finished()

    def _config(self) -> WorkerConfig:
        base = from_environ(
            {
                "HALTLINE_HOME": str(self._home),
                "HALTLINE_MODEL": MODEL,
                "HALTLINE_BUS_SECRET": (self._home / "secrets" / "bus").read_text().strip(),
                "HALTLINE_STEP_DELAY": str(self._delay),
                "HALTLINE_MAX_RUNNING": str(SLOTS),
            }
        )
        engine = EngineConfig(max_running=SLOTS, max_queued=64, max_model_len=LONGEST)
        return WorkerConfig(**{**_fields(base), "engine": engine})


def _fields(config: WorkerConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in WorkerConfig.__dataclass_fields__}


class WebServer:
    """`manage.py web` in a home of its own, migrated and with keys."""

    def __init__(self, home: Path, *, step_delay: float = 0.01, **variables: str) -> None:
        self.home, self.port = home, free_port()
        self.env = {
            **{n: v for n, v in os.environ.items() if not n.startswith(("HALTLINE_", "DATABASE"))},
            "HALTLINE_HOME": str(home),
            "HALTLINE_GRACE": "6",
            **variables,
        }
        self.log = home.parent / f"{home.name}.log"
        self.engine = EngineThread(home, step_delay=step_delay)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def key(self, name: str = "client") -> str:
        return (self.home / f"{name}.key").read_text().strip()

    def http(self, name: str = "client") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key(name)}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key(), max_retries=0)

    def manage(self, *words: str) -> None:
        command = [sys.executable, str(ROOT / "manage.py"), *words]
        subprocess.run(command, env=self.env, cwd=ROOT, check=True, capture_output=True)

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.manage("migrate", "-v0")
        self.manage("bootstrap", "--home", str(self.home))
        (self.home / "run").mkdir(exist_ok=True)
        self.engine.start()
        self.start_web()

    def start_web(self) -> None:
        command = [sys.executable, str(ROOT / "manage.py"), "web", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._is_healthy, seconds=60, what=f"no web: {self.log.read_text()}")

    def _is_healthy(self) -> bool:
        assert self.running.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
            return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.engine.stop()


@contextmanager
def serving(home: Path, *, step_delay: float = 0.01, **variables: str) -> Iterator[WebServer]:
    server = WebServer(home, step_delay=step_delay, **variables)
    server.start()
    try:
        yield server
    finally:
        server.stop()
