"""The only reader of the environment on the Django side: every setting, checked at start.

A variable that is empty counts as absent. A value that does not fit raises `SettingError` with the
variable's name, so that a process refuses to start instead of guessing.
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
from inference.bus.address import parse as parse_bus_address

DEFAULT_MODEL = "smollm2-135m-instruct"
PausedWork = Literal["hold", "refuse"]
_POSTGRES = ("postgres", "postgresql", "pgsql", "psql")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class SettingError(ImproperlyConfigured):
    """A setting that a process cannot start with: the text is for the operator."""


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

    def prepare_home(self) -> None:
        """Make its folders. Raises `SettingError` where that fails."""
        try:
            self.home.prepare()
        except OSError as problem:
            raise _unfit_home(self.home, problem) from None


def load(variables: Mapping[str, str] = os.environ) -> Env:
    """Raises `SettingError` for a value that does not fit, with the variable's name."""
    env = _given(variables)
    home = _home(env)
    engines = _at_least(env, "HALTLINE_ENGINES", default=1, least=1)
    return Env(
        home=home,
        bind=env.str("HALTLINE_BIND", "127.0.0.1"),
        port=_port(env),
        debug=_flag(env, "HALTLINE_DEBUG", default=False),
        secret_key=env.str("HALTLINE_SECRET_KEY", "") or _kept(home, "secret_key"),
        allowed_hosts=_words(env, "HALTLINE_ALLOWED_HOSTS") or ["127.0.0.1", "localhost", "[::1]"],
        database=_database(env, home),
        broker_url=_broker_url(env, home),
        broker_is_embedded=not env.str("HALTLINE_BROKER_URL", ""),
        bus_urls=_bus_urls(env, home, engines),
        bus_secret=env.str("HALTLINE_BUS_SECRET", "") or _kept(home, "bus"),
        engines=engines,
        model=env.str("HALTLINE_MODEL", DEFAULT_MODEL),
        paused_work=_paused_work(env),
        grace=_seconds(env, "HALTLINE_GRACE", 30.0),
        abort_deadline=_seconds(env, "HALTLINE_ABORT_DEADLINE", 30.0),
        retention_days=_at_least(env, "HALTLINE_RETENTION", default=30, least=0),
        send_timeout=_seconds(env, "HALTLINE_SEND_TIMEOUT", 60.0),
        eager_send=_flag(env, "HALTLINE_EAGER_SEND", default=True),
        web_processes=_at_least(env, "HALTLINE_WEB_PROCESSES", default=1, least=1),
    )


def _given(variables: Mapping[str, str]) -> environ.Env:
    """Without what is empty. A `$` is a letter: no value names another variable."""
    env = environ.Env()
    env.escape_proxy = True
    env.ENVIRON = {
        name: value.strip().replace("$", r"\$")
        for name, value in variables.items()
        if value.strip()
    }
    return env


def _home(env: environ.Env) -> Home:
    named = env.str("HALTLINE_HOME", ".haltline")
    try:
        return Home(Path(named).expanduser().resolve())
    except (RuntimeError, ValueError, OSError) as problem:
        raise SettingError(f"HALTLINE_HOME must be a folder, not {named!r}: {problem}") from None


def _kept(home: Home, name: str) -> str:
    try:
        return home.secret(name)
    except OSError as problem:
        raise _unfit_home(home, problem) from None


def _unfit_home(home: Home, problem: OSError) -> SettingError:
    return SettingError(
        f"HALTLINE_HOME must be a folder that this user can write to, not {home.root}: "
        f"{problem.strerror or problem}"
    )


def _words(env: environ.Env, name: str) -> list[str]:
    """What stands between the commas."""
    return [word.strip() for word in env.str(name, "").split(",") if word.strip()]


def _flag(env: environ.Env, name: str, *, default: bool) -> bool:
    value = env.str(name, _YES[1] if default else _NO[1])
    if value.lower() not in _YES + _NO:
        raise SettingError(f"{name} must be true or false, not {value!r}")
    return value.lower() in _YES


def _port(env: environ.Env) -> int:
    port = _at_least(env, "HALTLINE_PORT", default=8000, least=1)
    if port > 65535:
        raise SettingError(f"HALTLINE_PORT must be at most 65535, not {port}")
    return port


def _at_least(env: environ.Env, name: str, *, default: int, least: int) -> int:
    try:
        value: int = env.int(name, default)
    except ValueError:
        text = env.str(name)
        raise SettingError(f"{name} must be a whole number, not {text!r}") from None
    if value < least:
        raise SettingError(f"{name} must be at least {least}, not {value}")
    return value


def _seconds(env: environ.Env, name: str, default: float) -> float:
    text = env.str(name, str(default))
    try:
        value = float(text)
    except ValueError:
        raise SettingError(f"{name} must be a number of seconds, not {text!r}") from None
    if not 0 < value < float("inf"):
        raise SettingError(f"{name} must be more than 0 seconds, not {value}")
    return value


def _paused_work(env: environ.Env) -> PausedWork:
    value = env.str("HALTLINE_PAUSED_WORK", "hold")
    if value == "hold":
        return "hold"
    if value == "refuse":
        return "refuse"
    raise SettingError(f"HALTLINE_PAUSED_WORK must be 'hold' or 'refuse', not {value!r}")


def _database(env: environ.Env, home: Home) -> dict[str, Any]:
    """As Django wants it. The URL may hold a password, so no message shows it."""
    url = env.str("DATABASE_URL", "")
    if not url:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(home.database)}
    if url.partition("://")[0] not in (*_POSTGRES, "sqlite"):
        raise SettingError("DATABASE_URL must begin with postgres:// or sqlite:///")
    try:
        found: dict[str, Any] = environ.Env.db_url_config(url)
    except ValueError:
        raise SettingError("DATABASE_URL must be postgres://user:password@host:port/name") from None
    if found["NAME"] in {"", ":memory:"}:
        raise SettingError("DATABASE_URL must name a database, or a file after sqlite:///")
    return found


def _broker_url(env: environ.Env, home: Home) -> str:
    url: str = env.str("HALTLINE_BROKER_URL", "")
    if not url:
        return f"unix://:{_kept(home, 'broker')}@{home.broker_socket}?db=0"
    if not _is_broker(url):
        raise SettingError(
            "HALTLINE_BROKER_URL must be redis://host:port/db, rediss://host:port/db or unix:///path"
        )
    return url


def _is_broker(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return bool(parts.path)
        return parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is none
        return False


def _bus_urls(env: environ.Env, home: Home, engines: int) -> list[str]:
    urls = _words(env, "HALTLINE_BUS_URL")
    for url in urls:
        try:
            parse_bus_address(url)
        except ValueError as problem:
            raise SettingError(f"HALTLINE_BUS_URL must be an engine's address: {problem}") from None
    if 0 < len(urls) < engines:
        raise SettingError(
            f"HALTLINE_BUS_URL must give each of {engines} engines (HALTLINE_ENGINES) an address, "
            f"not {len(urls)} in all"
        )
    return urls or [f"unix:{home.engine_socket(number)}" for number in range(engines)]


def for_child(**changes: str) -> dict[str, str]:
    """The environment that a child process gets: this one's, with changes."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
