from __future__ import annotations

import stat

import pytest
import redis

from haltline.broker import broker_answers, broker_command
from haltline.env import Env, load


def test_it_answers_with_the_password_and_refuses_without(broker: str, env: Env) -> None:
    assert broker_answers(broker)
    if env.broker_is_embedded:
        without = redis.Redis(unix_socket_path=str(env.home.broker_socket))
        with pytest.raises(redis.exceptions.AuthenticationError):
            without.ping()


def test_it_is_not_there_when_nobody_listens(tmp_path: object) -> None:
    assert not broker_answers(f"unix://:x@{tmp_path}/none.sock?db=0")


def test_it_keeps_its_password_out_of_the_arguments(tmp_path: object) -> None:
    env = load({"HALTLINE_HOME": f"{tmp_path}/a home with spaces"})
    env.home.prepare()
    command = broker_command(env)
    assert env.home.secret("broker") not in " ".join(command)
    config = env.home.root / "secrets" / "broker.conf"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert env.home.secret("broker") in config.read_text()
