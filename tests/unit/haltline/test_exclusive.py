from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from haltline.exclusive import TakenError, home_lock, port_check
from haltline.home import Home


def test_it_names_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TakenError, match=rf"port {port} on 127\.0\.0\.1 is taken"):
            port_check("127.0.0.1", port)
    port_check("127.0.0.1", port)


def test_it_names_an_address_that_is_not_this_machine_s() -> None:
    with pytest.raises(TakenError, match=r"cannot listen on 192\.0\.2\.1"):
        port_check("192.0.2.1", 8000)


def test_it_refuses_a_home_that_another_serve_holds(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home_lock(home), pytest.raises(TakenError, match=rf"process {os.getpid()}"):  # noqa: SIM117
        with home_lock(home):
            pytest.fail("two held it")
    with home_lock(home):
        assert (tmp_path / "serve.lock").read_text() == str(os.getpid())
