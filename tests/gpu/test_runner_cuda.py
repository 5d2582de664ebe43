"""The same runner on a CUDA device: the text that the CPU gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.loading import load_runner
from inference.engine.models.files import open_model
from tests.doubles.tiny_llama import write_tiny_llama
from tests.unit.engine.model_bench import Mix, config, greedy, runner_of

pytestmark = pytest.mark.gpu


def test_it_gives_the_text_that_the_cpu_gives(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    prompts = [[256, *text] for text in (b"a", b"hello there", b"y" * 100)]
    wanted = {key: (prompt, greedy(32)) for key, prompt in enumerate(prompts)}
    on_device = load_runner(
        open_model(folder), config=config(), dtype=torch.float32, device=torch.device("cuda")
    )
    expected = Mix(runner_of(folder)).run(wanted)
    assert Mix(on_device, step_tokens=24, max_running=3).run(wanted) == expected
