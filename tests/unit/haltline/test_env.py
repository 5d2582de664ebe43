from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from haltline.env import Env, load


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
        ("HALTLINE_BROKER_URL", "amqp://somewhere"),
        ("HALTLINE_BUS_URL", "http://somewhere"),
    ],
)
def test_it_refuses_a_bad_value_by_its_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        env(tmp_path, **{name: value})


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
