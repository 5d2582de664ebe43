"""Stacks for the acceptance tests: with the tiny model, and with the real one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.acceptance.stack import Stack, running

StartStack = Callable[..., Stack]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder with a short path, because unix sockets need one."""
    with tempfile.TemporaryDirectory(prefix="haltline-stack-") as name:
        yield Path(name)


@contextmanager
def servers(name: str) -> Iterator[dict[str, str]]:
    """Settings for the servers that were named for tests: a new database, an empty broker."""
    given: dict[str, str] = {}
    with ExitStack() as undo:
        if database := os.environ.get("HALTLINE_TEST_DATABASE_URL"):
            given["DATABASE_URL"] = undo.enter_context(_new_database(database, name))
        if broker := os.environ.get("HALTLINE_TEST_BROKER_URL"):
            given["HALTLINE_BROKER_URL"] = undo.enter_context(_empty_broker(broker))
        yield given


@contextmanager
def _new_database(url: str, name: str) -> Iterator[str]:
    server = urlsplit(url)._replace(path="/postgres").geturl()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')  # type: ignore[arg-type]
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')  # type: ignore[arg-type]


@contextmanager
def _empty_broker(url: str) -> Iterator[str]:
    client = redis.Redis.from_url(url)
    client.flushdb()
    try:
        yield url
    finally:
        client.flushdb()
        client.close()


@pytest.fixture(scope="module")
def tiny_model(scratch: Path) -> Path:
    """A random Llama of some kilobytes, with a byte tokenizer."""
    from tests.doubles.tiny_llama import write_tiny_llama

    return write_tiny_llama(scratch / "tiny")


@pytest.fixture
def stack(scratch: Path, tiny_model: Path) -> Iterator[Stack]:
    """Not started yet, so that a test can spoil something first."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=scratch))
    with servers("haltline_acceptance") as given:
        stack = Stack(home, HALTLINE_MODEL=str(tiny_model), HALTLINE_STEP_DELAY="0.02", **given)
        yield stack
        stack.kill()


@pytest.fixture(scope="module")
def real_stack(scratch: Path, model_cache: Path, default_model: Path) -> Iterator[Stack]:
    """The default model, served as `make serve` serves it."""
    home = scratch / "real"
    home.mkdir(mode=0o700)
    assert default_model.is_relative_to(model_cache)
    (home / "models").symlink_to(model_cache)
    with servers("haltline_acceptance_real") as given, running(home, **given) as stack:
        yield stack
