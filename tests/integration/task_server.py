"""A web process with what background work needs: broker, Celery workers, the engine's word."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from haltline.broker import embedded_broker
from haltline.env import load
from tests.acceptance.stack import ROOT
from tests.integration.gateway_server import WebServer
from tests.processes import wait_until


class TaskServer(WebServer):
    """`workers`: the processes by their queue, so that a test can do without one."""

    def __init__(self, home: Path, *, step_delay: float, **variables: str) -> None:
        super().__init__(home, step_delay=step_delay, **variables)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def start_worker(self, queue: str, *more: str) -> None:
        command = [sys.executable, str(ROOT / "manage.py"), *(more or ("tasks", "--queue", queue))]
        with self.log.open("ab") as log:
            self.workers[queue] = subprocess.Popen(
                command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def stop_worker(self, queue: str) -> None:
        worker = self.workers.pop(queue)
        worker.kill()
        worker.wait()

    def stop(self) -> None:
        for queue in list(self.workers):
            self.stop_worker(queue)
        super().stop()

    def is_ready(self) -> bool:
        with self.http("operator") as http:
            return http.get("/health/ready").status_code == 200


@contextmanager
def serving_tasks(
    home: Path, *, step_delay: float = 0.01, **variables: str
) -> Iterator[TaskServer]:
    server = TaskServer(home, step_delay=step_delay, **variables)
    env = load(server.env)
    server.engine.broker_url = env.celery_broker_url
    env.home.prepare()
    with ExitStack() as undo:
        undo.enter_context(embedded_broker(env))
        undo.callback(server.stop)
        server.start()
        for queue in ("control", "work"):
            server.start_worker(queue)
        wait_until(server.is_ready, seconds=60, what="the workers do not come")
        yield server
