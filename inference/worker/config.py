"""The engine process's settings, read from the environment once and checked at start.

A value that does not fit raises `ConfigError` with the variable's name. Imports no torch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from inference.bus.address import TcpAddress, parse
from inference.engine.config import EngineConfig
from inference.weights import DEFAULT_MODEL

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
DTYPES = ("auto", "float32", "bfloat16", "int8")
# What streams, and aborts, wait for at most while a long prompt is read.
STEP_SECONDS = 0.12
BROKER_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "memory")


class ConfigError(ValueError):
    """A setting that the process cannot start with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Durations are seconds. `broker_url` is Celery's spelling; None: there is no broker.

    `threads`: torch's; None: as many as torch thinks right. `parent_pid`: whose death ends this
    process.
    """

    home: Path
    model: str
    device: str
    dtype: str
    engine: EngineConfig
    bus_url: str
    bus_secret: str
    broker_url: str | None
    replica: str
    step_delay: float
    grace: float
    threads: int | None
    parent_pid: int | None

    @property
    def cache(self) -> Path:
        """Where `pull` puts models."""
        return self.home / "models"

    @property
    def served_name(self) -> str:
        """The model's public name: a path's last part, without its suffix."""
        path = Path(self.model)
        is_path = self.model.startswith(("/", "./", "../", "~")) or path.exists()
        return path.name.removesuffix(".gguf") if is_path else self.model


def from_environ(variables: Mapping[str, str] = os.environ) -> WorkerConfig:
    """Raises `ConfigError`."""
    env = _Reader(variables)
    home = _home(env)
    replica = env.text("HALTLINE_REPLICA", "engine-0")
    return WorkerConfig(
        home=home,
        model=env.text("HALTLINE_MODEL", DEFAULT_MODEL),
        device=_device(env),
        dtype=env.one_of("HALTLINE_DTYPE", DTYPES),
        engine=_engine(env),
        bus_url=env.text("HALTLINE_BUS_URL", f"unix:{home}/run/{replica}.sock"),
        bus_secret=env.text("HALTLINE_BUS_SECRET", _kept_secret(home)),
        broker_url=_broker_url(env),
        replica=replica,
        step_delay=env.seconds("HALTLINE_STEP_DELAY", 0.0),
        grace=env.seconds("HALTLINE_GRACE", 10.0),
        threads=env.maybe_count("HALTLINE_THREADS") or env.openmp_threads(),
        parent_pid=env.maybe_count("HALTLINE_PARENT_PID"),
    )


def check_bus(config: WorkerConfig) -> None:
    """Raises `ConfigError` for an address that is none, or open to others without a secret."""
    try:
        address = parse(config.bus_url)
    except ValueError as problem:
        raise ConfigError(f"HALTLINE_BUS_URL: {problem}") from problem
    if isinstance(address, TcpAddress) and not (address.is_loopback or config.bus_secret):
        raise ConfigError("HALTLINE_BUS_SECRET is needed where HALTLINE_BUS_URL leaves this host")


def _home(env: _Reader) -> Path:
    named = env.text("HALTLINE_HOME", ".haltline")
    try:
        return Path(named).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as problem:
        raise ConfigError(f"HALTLINE_HOME must be a folder, not {named!r}: {problem}") from problem


def _kept_secret(home: Path) -> str:
    """The one that the web processes of the same home use; none if none was made."""
    path = home / "secrets" / "bus"
    try:
        return path.read_text(encoding="ascii").strip() if path.is_file() else ""
    except OSError as problem:
        raise ConfigError(
            f"HALTLINE_HOME must be a folder that this user can read: {problem}"
        ) from problem


def _device(env: _Reader) -> str:
    name = env.text("HALTLINE_DEVICE", "auto")
    if not DEVICES.fullmatch(name):
        raise ConfigError(f"HALTLINE_DEVICE must be auto, cpu, cuda or cuda:N, not {name!r}")
    return name


def _engine(env: _Reader) -> EngineConfig:
    standard = EngineConfig()
    try:
        return EngineConfig(
            max_running=env.count("HALTLINE_MAX_RUNNING", standard.max_running),
            max_queued=env.count("HALTLINE_MAX_QUEUED", standard.max_queued),
            kv_tokens=env.count("HALTLINE_KV_TOKENS", standard.kv_tokens),
            step_tokens=env.count("HALTLINE_STEP_TOKENS", standard.step_tokens),
            step_seconds=env.seconds("HALTLINE_STEP_SECONDS", STEP_SECONDS) or None,
            max_model_len=env.count("HALTLINE_MAX_MODEL_LEN", standard.max_model_len),
        )
    except ConfigError:
        raise
    except ValueError as problem:
        raise ConfigError(_by_variable(str(problem))) from problem


def _by_variable(text: str) -> str:
    """With the names under which the sizes were set."""
    for name in (field.name for field in fields(EngineConfig)):
        text = re.sub(rf"\b{name}\b", f"HALTLINE_{name.upper()}", text)
    return text


def _broker_url(env: _Reader) -> str | None:
    url = env.text("HALTLINE_BROKER_URL", "")
    if not url:
        return None
    if urlsplit(url).scheme not in BROKER_SCHEMES:
        schemes = ", ".join(BROKER_SCHEMES)
        raise ConfigError(f"HALTLINE_BROKER_URL must begin with one of: {schemes}")
    if not url.startswith("unix://"):
        return url
    # Celery spells a unix socket differently from redis-py.
    return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=", 1)


class _Reader:
    """One variable at a time. A variable that is empty counts as absent."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str, default: str) -> str:
        return self._variables.get(name, "").strip() or default

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, allowed[0])
        if value not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def count(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{name} must be a whole number above 0, not {value!r}")
        return int(value)

    def maybe_count(self, name: str) -> int | None:
        return self.count(name, 1) if self.text(name, "") else None

    def openmp_threads(self) -> int | None:
        """What was set for torch's threads by its own variable, which has other forms too."""
        value = self.text("OMP_NUM_THREADS", "")
        return int(value) if value.isdecimal() and int(value) > 0 else None

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number of seconds, not {text!r}") from None
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} must be a number of seconds, not {text!r}")
        return value
