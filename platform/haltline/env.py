"""The only reader of the environment on the Django side: every setting, checked at start.

A value that does not parse raises `ImproperlyConfigured` with the variable's name, so that a
process refuses to start instead of guessing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

from haltline.home import Home

DEFAULT_MODEL = "smollm2-135m-instruct"
PausedWork = Literal["hold", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Durations are seconds. `broker_url` is what redis-py understands."""

    home: Home
    bind: str
    port: int
    debug: bool
    secret_key: str
    allowed_hosts: list[str]
    database: dict[str, Any]
    broker_url: str
    broker_is_embedded: bool
    bus_urls: list[str]
    bus_secret: str
    engines: int
    model: str
    paused_work: PausedWork
    grace: float
    abort_deadline: float
    retention_days: int
    send_timeout: float
    eager_send: bool
    web_processes: int

    @property
    def celery_broker_url(self) -> str:
        """Celery's spelling of a unix socket differs from redis-py's."""
        if not self.broker_url.startswith("unix://"):
            return self.broker_url
        return self.broker_url.replace("unix://", "redis+socket://", 1).replace(
            "?db=", "?virtual_host=", 1
        )


def load(variables: Mapping[str, str] = os.environ) -> Env:
    """Raises `ImproperlyConfigured` for a value that does not fit, with the variable's name."""
    env = environ.Env()
    env.ENVIRON = dict(variables)
    home = Home(Path(env.str("HALTLINE_HOME", ".haltline")).expanduser().resolve())
    engines = _at_least(env, "HALTLINE_ENGINES", default=1, least=1)
    return Env(
        home=home,
        bind=env.str("HALTLINE_BIND", "127.0.0.1"),
        port=_port(env),
        debug=env.bool("HALTLINE_DEBUG", False),
        secret_key=env.str("HALTLINE_SECRET_KEY", "") or home.secret("secret_key"),
        allowed_hosts=env.list(
            "HALTLINE_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"]
        ),
        database=env.db_url("DATABASE_URL", f"sqlite:///{home.database}"),
        broker_url=_broker_url(env, home),
        broker_is_embedded=not env.str("HALTLINE_BROKER_URL", ""),
        bus_urls=_bus_urls(env, home, engines),
        bus_secret=env.str("HALTLINE_BUS_SECRET", "") or home.secret("bus"),
        engines=engines,
        model=env.str("HALTLINE_MODEL", DEFAULT_MODEL),
        paused_work=_paused_work(env),
        grace=_seconds(env, "HALTLINE_GRACE", 30.0),
        abort_deadline=_seconds(env, "HALTLINE_ABORT_DEADLINE", 30.0),
        retention_days=_at_least(env, "HALTLINE_RETENTION", default=30, least=0),
        send_timeout=_seconds(env, "HALTLINE_SEND_TIMEOUT", 60.0),
        eager_send=env.bool("HALTLINE_EAGER_SEND", True),
        web_processes=_at_least(env, "HALTLINE_WEB_PROCESSES", default=1, least=1),
    )


def _port(env: environ.Env) -> int:
    port = _at_least(env, "HALTLINE_PORT", default=8000, least=1)
    if port > 65535:
        raise ImproperlyConfigured(f"HALTLINE_PORT must be at most 65535, not {port}")
    return port


def _at_least(env: environ.Env, name: str, *, default: int, least: int) -> int:
    try:
        value: int = env.int(name, default)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number") from None
    if value < least:
        raise ImproperlyConfigured(f"{name} must be at least {least}, not {value}")
    return value


def _seconds(env: environ.Env, name: str, default: float) -> float:
    try:
        value: float = env.float(name, default)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number of seconds") from None
    if not 0 < value < float("inf"):
        raise ImproperlyConfigured(f"{name} must be more than 0 seconds, not {value}")
    return value


def _paused_work(env: environ.Env) -> PausedWork:
    value = env.str("HALTLINE_PAUSED_WORK", "hold")
    if value == "hold":
        return "hold"
    if value == "refuse":
        return "refuse"
    raise ImproperlyConfigured(f"HALTLINE_PAUSED_WORK must be 'hold' or 'refuse', not {value!r}")


def _broker_url(env: environ.Env, home: Home) -> str:
    url: str = env.str("HALTLINE_BROKER_URL", "")
    if not url:
        return f"unix://:{home.secret('broker')}@{home.broker_socket}?db=0"
    if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
        raise ImproperlyConfigured(
            "HALTLINE_BROKER_URL must begin with redis://, rediss:// or unix://"
        )
    return url


def _bus_urls(env: environ.Env, home: Home, engines: int) -> list[str]:
    urls: list[str] = env.list("HALTLINE_BUS_URL", default=[])
    for url in urls:
        if urlsplit(url).scheme not in {"unix", "tcp", "tls"}:
            raise ImproperlyConfigured("HALTLINE_BUS_URL must begin with unix:, tcp:// or tls://")
    return urls or [f"unix:{home.engine_socket(number)}" for number in range(engines)]


def for_child(**changes: str) -> dict[str, str]:
    """The environment that a child process gets: this one's, with changes."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
