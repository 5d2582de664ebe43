"""What every test stands on: an own HALTLINE_HOME, settings for tests, a broker when one is asked.

The environment is set when this file is imported, before Django's settings are read. Nothing of
the user's own installation is read or written: all `HALTLINE_*` variables are dropped first.
`HALTLINE_TEST_DATABASE_URL` and `HALTLINE_TEST_BROKER_URL` name real servers to test against.
`HALTLINE_TEST_ROUNDS` (1) multiplies the rounds of randomised tests; `HALTLINE_TEST_MODELS` is
where fetched models are kept (build/models).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

if TYPE_CHECKING:
    from haltline.env import Env

pytest_plugins = ["tests.cast"]

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = int(os.environ.get("HALTLINE_TEST_ROUNDS", "1"))
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ON_MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def _prepare_environment() -> Path:
    database = os.environ.get("HALTLINE_TEST_DATABASE_URL")
    broker = os.environ.get("HALTLINE_TEST_BROKER_URL")
    kept = ("HALTLINE_TEST_",)
    for name in [name for name in os.environ if name.startswith("HALTLINE_")]:
        if not name.startswith(kept):
            del os.environ[name]
    os.environ.pop("DATABASE_URL", None)
    home = Path(tempfile.mkdtemp(prefix="haltline-tests-"))
    os.environ["HALTLINE_HOME"] = str(home)
    os.environ["DJANGO_SETTINGS_MODULE"] = "haltline.settings"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if database:
        os.environ["DATABASE_URL"] = database
    if broker:
        os.environ["HALTLINE_BROKER_URL"] = broker
    return home


HOME = _prepare_environment()

hypothesis_settings.register_profile(
    "haltline",
    max_examples=50 * ROUNDS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("haltline")


def pytest_configure() -> None:
    from django.conf import settings

    # A slow hash protects passwords that somebody might steal; these are nobody's.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {"gpu": _no_gpu, "browser": _no_browser}
    for marker, missing in reasons.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=str(reason)))


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device here"


def _no_browser() -> str | None:
    return None if chromium_path() else "no Chromium here: 'apt-get install chromium' installs one"


def chromium_path() -> str | None:
    """The Chromium to drive: HALTLINE_TEST_CHROMIUM, else one on PATH, else macOS's Chrome."""
    named = os.environ.get("HALTLINE_TEST_CHROMIUM")
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    on_macos = str(CHROMIUM_ON_MACOS) if CHROMIUM_ON_MACOS.exists() else None
    return named or found or on_macos


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path for playwright's `executable_path`."""
    path = chromium_path()
    assert path is not None
    return path


@pytest.fixture(scope="session")
def model_cache() -> Path:
    """Where models that tests fetch are kept, so that they are fetched once."""
    return Path(os.environ.get("HALTLINE_TEST_MODELS", ROOT / "build" / "models"))


@pytest.fixture(scope="session")
def default_model(model_cache: Path) -> Path:
    """The weights of the default model: fetched the first time, checked every time."""
    from inference.weights import DEFAULT_MODEL, pull

    return pull(DEFAULT_MODEL, model_cache)


@pytest.fixture(scope="session")
def rounds() -> int:
    """How many times as many rounds a randomised test should run."""
    return ROUNDS


@pytest.fixture(scope="session")
def env() -> Env:
    from django.conf import settings

    loaded: Env = settings.ENV
    return loaded


@pytest.fixture(scope="session")
def broker(env: Env) -> Iterator[str]:
    """The URL of a broker that answers: the one named for tests, else an embedded one."""
    if not env.broker_is_embedded:
        yield env.broker_url
        return
    from haltline.broker import embedded_broker

    env.home.prepare()
    with embedded_broker(env):
        yield env.broker_url
