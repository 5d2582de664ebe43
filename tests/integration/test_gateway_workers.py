"""Who answers on the broker: asked before, during and after a restart of it, and of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
import redis
from kombu.exceptions import OperationalError

from gateway import readiness
from gateway.workers import queue_has_worker, worker_answers
from haltline import probes
from haltline.broker import embedded_broker
from haltline.env import Env, load
from haltline.services_table import MANAGE, node_name
from tests.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CONTROL = node_name("control")


@pytest.fixture
def own() -> Iterator[Env]:
    """A home with a short path, because unix sockets need one."""
    with tempfile.TemporaryDirectory(prefix="haltline-w-") as name:
        loaded = load({"HALTLINE_HOME": name})
        loaded.prepare_home()
        yield loaded


@pytest.fixture
def worker(own: Env) -> Iterator[subprocess.Popen[bytes]]:
    """Of `control`; it outlives its broker."""
    others = {name: value for name, value in os.environ.items() if name != "HALTLINE_BROKER_URL"}
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "tasks", "--queue", "control"],
        env={**others, "HALTLINE_HOME": str(own.home.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.wait()


def answers(own: Env) -> bool:
    return probes.celery_worker(own.celery_broker_url, CONTROL)()


def test_it_survives_a_broker_that_comes_back(own: Env, worker: subprocess.Popen[bytes]) -> None:
    with embedded_broker(own):
        wait_until(lambda: answers(own), seconds=60)
        assert worker_answers(own.celery_broker_url, CONTROL, within=5)
        assert not worker_answers(own.celery_broker_url, "control@elsewhere", within=0.1)
    assert not answers(own), "no broker, and no exception"
    with pytest.raises((OperationalError, redis.RedisError, OSError)):
        worker_answers(own.celery_broker_url, CONTROL, within=5)
    with embedded_broker(own):
        assert not worker_answers(own.celery_broker_url, "control@elsewhere", within=0.1)
        wait_until(lambda: answers(own), seconds=60)


def test_it_names_the_queue_that_nobody_consumes(
    own: Env, worker: subprocess.Popen[bytes], settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HALTLINE_BROKER_URL", own.broker_url)
    monkeypatch.setattr(settings, "CELERY_BROKER_URL", own.celery_broker_url)
    said = readiness._ask_broker_and_worker
    assert said().startswith("the broker does not answer")
    with embedded_broker(own):
        wait_until(lambda: said() == "", seconds=60)
        assert not queue_has_worker(own.celery_broker_url, "work", within=0.2)
        worker.send_signal(signal.SIGSTOP)
        assert said() == "no Celery worker of the queue 'control' answers"
        worker.send_signal(signal.SIGCONT)
        wait_until(lambda: said() == "", seconds=60)
        client = redis.Redis.from_url(own.broker_url)
        left = [key.decode() for key in client.keys("*reply*")]
        client.close()
        assert len(left) <= 1, left
    with embedded_broker(own):
        wait_until(lambda: said() == "", seconds=60)
