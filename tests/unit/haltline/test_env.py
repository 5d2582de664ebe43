from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from haltline.env import Env, SettingError, load
from haltline.services_table import MANAGE


def env(tmp_path: Path, **variables: str) -> Env:
    return load({"HALTLINE_HOME": str(tmp_path), **variables})


def test_it_needs_no_variable(tmp_path: Path) -> None:
    loaded = env(tmp_path)
    assert (loaded.bind, loaded.port, loaded.engines) == ("127.0.0.1", 8000, 1)
    assert loaded.database["NAME"] == str(tmp_path / "haltline.sqlite3")
    assert loaded.broker_is_embedded
    assert loaded.bus_urls == [f"unix:{loaded.home.engine_socket(0)}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HALTLINE_PORT", "http"),
        ("HALTLINE_PORT", "0"),
        ("HALTLINE_PORT", "70000"),
        ("HALTLINE_ENGINES", "0"),
        ("HALTLINE_GRACE", "-1"),
        ("HALTLINE_GRACE", "nan"),
        ("HALTLINE_GRACE", "inf"),
        ("HALTLINE_ABORT_DEADLINE", "soon"),
        ("HALTLINE_PAUSED_WORK", "drop"),
        ("HALTLINE_GRACE", "5 minutes"),
        ("HALTLINE_BROKER_URL", "amqp://somewhere"),
        ("HALTLINE_BROKER_URL", "zzz"),
        ("HALTLINE_BROKER_URL", "redis://host:many/0"),
        ("HALTLINE_BUS_URL", "http://somewhere"),
        ("HALTLINE_BUS_URL", "foo"),
        ("HALTLINE_BUS_URL", "tcp://h:1,unix:relative"),
        ("DATABASE_URL", "nonsense"),
        ("DATABASE_URL", "mysql://u@h/name"),
        ("DATABASE_URL", "postgres://u@h:many/name"),
        ("DATABASE_URL", "postgres://u@h"),
        ("DATABASE_URL", "sqlite://:memory:"),
        ("HALTLINE_DEBUG", "maybe"),
        ("HALTLINE_EAGER_SEND", "maybe"),
        ("HALTLINE_HOME", "/etc/passwd"),
        ("HALTLINE_HOME", "/proc/nowhere"),
        ("HALTLINE_HOME", "~nobody-of-that-name/x"),
    ],
)
def test_it_refuses_a_bad_value_by_its_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} must "):
        load({"HALTLINE_HOME": str(tmp_path), name: value})


def test_it_takes_an_empty_variable_for_an_absent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("HOME", "PORT", "GRACE", "DEBUG", "EAGER_SEND", "ALLOWED_HOSTS", "BUS_URL", "ENGINES")
    empty = {"DATABASE_URL": "", **{f"HALTLINE_{name}": " " for name in names}}
    assert load(empty) == load({})
    assert load(empty).home.root == tmp_path / ".haltline"


def test_it_refuses_fewer_addresses_than_engines(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="HALTLINE_BUS_URL must give each of 2 engines"):
        env(tmp_path, HALTLINE_ENGINES="2", HALTLINE_BUS_URL="tcp://127.0.0.1:7000")


def test_it_refuses_a_home_that_cannot_be_prepared(tmp_path: Path) -> None:
    loaded = env(tmp_path)
    (tmp_path / "models").write_text("a file")
    with pytest.raises(SettingError, match="HALTLINE_HOME must be a folder"):
        loaded.prepare_home()


def test_it_reads_values_as_they_are_typed(tmp_path: Path) -> None:
    loaded = env(
        tmp_path,
        HALTLINE_SECRET_KEY="$ecret",
        HALTLINE_ALLOWED_HOSTS="a.example, b.example",
        HALTLINE_GRACE="1e1",
        HALTLINE_EAGER_SEND="Off",
    )
    assert (loaded.secret_key, loaded.grace, loaded.eager_send) == ("$ecret", 10.0, False)
    assert loaded.allowed_hosts == ["a.example", "b.example"]


@pytest.mark.parametrize("command", ["web", "migrate", "engine"])
def test_it_refuses_in_one_line(tmp_path: Path, command: str) -> None:
    bad = {**os.environ, "HALTLINE_HOME": str(tmp_path), "HALTLINE_PORT": "abc"}
    done = manage(command, environment=bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: HALTLINE_PORT must be a whole number, not 'abc'\n"


@pytest.mark.parametrize(
    ("name", "value"), [("DTYPE", "float11"), ("DEVICE", "tpu"), ("MAX_MODEL_LEN", "0")]
)
def test_it_refuses_an_engine_s_setting_before_anything_starts(
    tmp_path: Path, name: str, value: str
) -> None:
    bad = {**os.environ, "HALTLINE_HOME": str(tmp_path), f"HALTLINE_{name}": value}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bad["HALTLINE_PORT"] = str(probe.getsockname()[1])
    done = manage("serve", environment=bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: HALTLINE_{name} must be ")
    assert done.stderr.count("\n") == 1


def manage(command: str, *, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MANAGE), command],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_keeps_its_secrets_from_one_start_to_the_next(tmp_path: Path) -> None:
    first, second = env(tmp_path), env(tmp_path)
    assert first.secret_key == second.secret_key
    assert len({first.secret_key, first.bus_secret, first.home.secret("broker")}) == 3


def test_it_spells_the_broker_for_celery(tmp_path: Path) -> None:
    loaded = env(tmp_path)
    assert loaded.celery_broker_url.startswith("redis+socket://:")
    assert loaded.celery_broker_url.endswith(f"@{loaded.home.broker_socket}?virtual_host=0")
    other = env(tmp_path, HALTLINE_BROKER_URL="redis://:pw@example.org:6379/3")
    assert other.celery_broker_url == other.broker_url == "redis://:pw@example.org:6379/3"
    assert not other.broker_is_embedded


def test_it_uses_a_short_folder_for_sockets_where_home_is_long(tmp_path: Path) -> None:
    deep = load({"HALTLINE_HOME": str(tmp_path / ("x" * 90))})
    assert len(str(deep.home.engine_socket(999))) <= 100
    assert deep.home.run != env(tmp_path).home.run
