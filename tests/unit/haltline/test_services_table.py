from __future__ import annotations

from pathlib import Path

from haltline.env import Env, load
from haltline.management.commands.serve import where_to_look
from haltline.services_table import engine_environment, stages


def env(tmp_path: Path, **variables: str) -> Env:
    return load({"HALTLINE_HOME": str(tmp_path), **variables})


def names(loaded: Env) -> list[list[str]]:
    return [[service.name for service in stage] for stage in stages(loaded)]


def test_it_starts_the_broker_first_and_the_web_last(tmp_path: Path) -> None:
    loaded = env(tmp_path, HALTLINE_ENGINES="2")
    loaded.home.prepare()
    assert names(loaded) == [
        ["broker"],
        ["migrate"],
        ["bootstrap"],
        ["tasks-control", "tasks-work", "beat", "engine-0", "engine-1"],
        ["web"],
    ]


def test_it_starts_no_broker_where_one_is_named(tmp_path: Path) -> None:
    loaded = env(tmp_path, HALTLINE_BROKER_URL="redis://127.0.0.1:6379/0")
    assert names(loaded)[0] == ["migrate"]


def test_it_gives_the_web_longer_to_drain_than_its_grace(tmp_path: Path) -> None:
    loaded = env(tmp_path, HALTLINE_BROKER_URL="redis://127.0.0.1:6379/0", HALTLINE_GRACE="7")
    assert stages(loaded)[-1][0].grace > 7


def test_it_tells_each_engine_its_name_and_address(tmp_path: Path) -> None:
    loaded = env(tmp_path, HALTLINE_ENGINES="2")
    given = engine_environment(loaded, 1)
    assert given["HALTLINE_REPLICA"] == "engine-1"
    assert given["HALTLINE_BUS_URL"] == loaded.bus_urls[1] != loaded.bus_urls[0]
    assert given["HALTLINE_BROKER_URL"] == loaded.celery_broker_url
    assert int(given["OMP_NUM_THREADS"]) >= 1


def test_it_says_where_to_look_without_showing_a_secret(tmp_path: Path) -> None:
    loaded = env(tmp_path, HALTLINE_PORT="8123")
    text = "\n".join(where_to_look(loaded, model="some model"))
    assert "http://127.0.0.1:8123/admin/" in text
    assert "http://127.0.0.1:8123/schema/" in text
    assert f"$(cat {tmp_path}/client.key)" in text
    assert '"model": "some model"' in text
    assert loaded.secret_key not in text
