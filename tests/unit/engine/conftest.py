"""Models for the engine's tests: a tiny one made on the spot, and the real default one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from inference.engine.native.checking import native_library
from inference.engine.native.library import Library
from tests.doubles.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random Llama."""
    torch.set_num_threads(1)
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def real_model(request: pytest.FixtureRequest) -> Path:
    """The GGUF file of the default model: HALTLINE_TEST_MODEL, else the one that tests fetch."""
    named = os.environ.get("HALTLINE_TEST_MODEL")
    found: Path = Path(named) if named else request.getfixturevalue("default_model")
    return found if found.is_file() else next(found.glob("*.gguf"))


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Library:
    """The native kernels, made once for all runs of the tests."""
    cache = getattr(request.config, "cache", None)  # absent where pytest's own plugin is off
    found = native_library(cache.mkdir("native-kernels") if cache else None)
    if found is None:
        pytest.skip("there is no C compiler here, or it has no OpenMP")
    return found
