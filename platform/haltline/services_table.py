"""Which processes make up one machine's Haltline, in the order in which they start.

Stages start one after the other; they end in the reverse order, so that what records the
engine's last events ends after the engine, and the broker ends last.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from haltline import env as environment
from haltline import probes
from haltline.broker import broker_command
from haltline.env import Env
from haltline.unit import Service

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
QUEUES = ("control", "work")
# Beyond what a process waits for by itself: its own farewell, and the engine's last events.
_DRAIN_MARGIN = 10.0
_MODEL_LOADS_WITHIN = 900.0


def stages(env: Env) -> list[list[Service]]:
    """Aborts and events have workers of their own, so that no backlog of work delays them."""
    workers = [_worker(env, queue) for queue in QUEUES]
    engines = [_engine(env, number) for number in range(env.engines)]
    return [
        *([[_broker(env)]] if env.broker_is_embedded else []),
        [_manage("migrate", "migrate", "--noinput", "--verbosity", "0", one_shot=True)],
        [_manage("bootstrap", "bootstrap", "--home", str(env.home.root), one_shot=True)],
        [*workers, _manage("beat", "beat"), *engines],
        [_web(env)],
    ]


def node_name(queue: str) -> str:
    """The Celery node that serves a queue on this machine."""
    return f"{queue}@{socket.gethostname()}"


def _manage(name: str, *arguments: str, one_shot: bool = False) -> Service:
    return Service(
        name=name,
        command=[sys.executable, str(MANAGE), *arguments],
        environment=environment.for_child(),
        one_shot=one_shot,
    )


def _broker(env: Env) -> Service:
    return Service(
        name="broker",
        command=broker_command(env),
        environment=environment.for_child(),
        probe=probes.broker(env.broker_url),
    )


def _worker(env: Env, queue: str) -> Service:
    return Service(
        name=f"tasks-{queue}",
        command=[sys.executable, str(MANAGE), "tasks", "--queue", queue],
        environment=environment.for_child(),
        probe=probes.celery_worker(env.celery_broker_url, node_name(queue)),
        grace=20.0,
    )


def _engine(env: Env, number: int) -> Service:
    return Service(
        name=f"engine-{number}",
        command=[sys.executable, str(MANAGE), "engine", "--number", str(number)],
        environment=environment.for_child(),
        probe=probes.listener(env.bus_urls[number]),
        ready_within=_MODEL_LOADS_WITHIN,
        grace=env.grace + _DRAIN_MARGIN,
    )


def _web(env: Env) -> Service:
    return Service(
        name="web",
        command=[sys.executable, str(MANAGE), "web"],
        environment=environment.for_child(),
        probe=probes.page(env, "/health/live"),
        grace=env.grace + _DRAIN_MARGIN,
    )


def engine_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inference.worker", *arguments]


def engine_environment(env: Env, number: int) -> dict[str, str]:
    """What an engine process reads; the rest (device, limits, …) is passed on as it is."""
    threads = max(1, (os.cpu_count() or 1) // env.engines)
    given = environment.for_child()
    return {
        "OMP_NUM_THREADS": str(threads),
        **given,
        "HALTLINE_HOME": str(env.home.root),
        "HALTLINE_MODEL": env.model,
        "HALTLINE_REPLICA": f"engine-{number}",
        "HALTLINE_GRACE": str(env.grace),
        "HALTLINE_BUS_URL": env.bus_urls[number],
        "HALTLINE_BUS_SECRET": env.bus_secret,
        "HALTLINE_BROKER_URL": env.celery_broker_url,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(MANAGE.parent), given.get("PYTHONPATH")])),
    }
