"""How the supervisor finds out whether a service is ready: one short look, never an exception.

Each function makes a probe. What a service needs besides is its own affair.
"""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import redis
from kombu.exceptions import OperationalError

from gateway.workers import worker_answers
from haltline.broker import broker_answers
from haltline.env import Env
from haltline.unit import Probe

_PATIENCE = 1.0
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


def broker(url: str) -> Probe:
    return lambda: broker_answers(url)


def listener(bus_url: str) -> Probe:
    """An engine listens once its model is loaded."""
    return lambda: _is_listening(bus_url)


def _is_listening(bus_url: str) -> bool:
    parts = urlsplit(bus_url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(_PATIENCE)
                client.connect(parts.path)
        else:
            address = (parts.hostname or "127.0.0.1", parts.port or 0)
            socket.create_connection(address, timeout=_PATIENCE).close()
    except OSError:
        return False
    return True


def celery_worker(broker_url: str, node: str) -> Probe:
    """The worker of that node name answers over the broker, which is given in Celery's spelling."""
    return lambda: _answers_ping(broker_url, node)


def _answers_ping(broker_url: str, node: str) -> bool:
    try:
        return worker_answers(broker_url, node, within=_PATIENCE)
    except (OperationalError, redis.RedisError, OSError):
        return False


def page(env: Env, path: str) -> Probe:
    """The web process answers 200 there."""
    return lambda: page_status(env, path) == 200


def page_status(env: Env, path: str) -> int | None:
    """What the web process answers, or None where none does."""
    answer = _get(env, path)
    return answer[0] if answer else None


def served_models(env: Env, key: str) -> list[str]:
    """The names under which models are served now; none where nobody answers."""
    status, body = _get(env, "/v1/models", Authorization=f"Bearer {key}") or (0, b"")
    return [model["id"] for model in json.loads(body)["data"]] if status == 200 else []


def _get(env: Env, path: str, **headers: str) -> tuple[int, bytes] | None:
    connection = http.client.HTTPConnection(_address(env), env.port, timeout=_PATIENCE)
    try:
        connection.request("GET", path, headers={"Host": _allowed_host(env), **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _allowed_host(env: Env) -> str:
    named = [host.lstrip(".") for host in env.allowed_hosts if host != "*"]
    return named[0] if named else "localhost"


def reachable_at(env: Env) -> str:
    """Host and port for a URL on this machine."""
    address = _address(env)
    return f"[{address}]:{env.port}" if ":" in address else f"{address}:{env.port}"


def _address(env: Env) -> str:
    return _EVERY_ADDRESS.get(env.bind, env.bind)
