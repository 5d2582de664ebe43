"""Who may import whom, and what each process leaves out of its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TENSORS = ("torch", "transformers", "numpy", "safetensors", "gguf")
DJANGO = ("django", "rest_framework", "channels", "daphne")


def loaded_by(code: str, *, django: bool = False) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    setup = "import django; django.setup();" if django else ""
    show = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = run(sys.executable, "-c", f"{setup}{code}\n{show}")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """With both source roots on the path, installed or not."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True
    )


def test_it_keeps_the_import_contracts() -> None:
    done = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["config", "sequence", "batch", "block_pool", "scheduler"])
def test_it_schedules_without_tensors(module: str) -> None:
    loaded = loaded_by(f"import inference.engine.{module}")
    assert loaded.isdisjoint([*TENSORS, *DJANGO])


def test_it_serves_the_web_without_tensors() -> None:
    loaded = loaded_by("import haltline.asgi, haltline.urls, haltline.server", django=True)
    assert "daphne" in loaded
    assert loaded.isdisjoint(["torch", "transformers", "safetensors", "gguf"])


def test_it_carries_tasks_out_without_tensors() -> None:
    loaded = loaded_by("import ledger.tasks", django=True)
    assert loaded.isdisjoint(["torch", "transformers", "safetensors", "gguf"])


def test_it_runs_the_engine_without_django() -> None:
    code = "import inference.worker.__main__, inference.engine.runner, inference.engine.loading"
    loaded = loaded_by(code)
    assert "torch" in loaded
    assert loaded.isdisjoint(DJANGO)


def test_it_fetches_weights_without_tensors_or_django() -> None:
    assert loaded_by("import inference.weights").isdisjoint(["torch", "transformers", *DJANGO])


def test_it_finds_the_standard_library_s_platform_from_the_project_s_root() -> None:
    code = "import platform, pathlib; print(pathlib.Path(platform.__file__).name)"
    assert run(sys.executable, "-c", code).stdout.strip() == "platform.py"
