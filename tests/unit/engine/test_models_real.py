"""The default model in float32, token for token beside transformers' own `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.hf_tokenizer import HfTokenizer, load_tokenizer
from inference.engine.models.files import open_model
from inference.engine.runner import TorchRunner
from tests.unit.engine.model_bench import Mix, generated, greedy, logits_of, runner_of, theirs
from tests.unit.engine.reference import own_reference, quick_reference

_QUESTIONS = [
    "Why is the sky blue?",
    "Write a poem about the sea.",
    "List three prime numbers above 100.",
    "Translate to French: good morning",
    "What is 12 * 13?",
    "Explain photosynthesis to a child.",
    "Tell me a joke.",
    "Who wrote Hamlet?",
    "Summarise Romeo and Juliet in two sentences.",
    "日本の首都はどこですか?",
    "Write a SQL query that counts users.",
    "Give me a recipe for pancakes.",
]
_BEGINNINGS = [
    "def fibonacci(n):",
    "The capital of Australia is",
    "Once upon a time, in a land far away,",
    "import os\nimport sys\n\n",
    "In 1969, the first",
    "Dear Sir or Madam,",
    "SELECT name FROM",
    "Ingredients: flour,",
    "The three laws of motion are",
    "x = [1, 2, 3]\nprint(",
]


@pytest.fixture(scope="module")
def tokenizer(real_model: Path) -> HfTokenizer:
    return load_tokenizer(open_model(real_model))


@pytest.fixture(scope="module")
def runner(real_model: Path) -> TorchRunner:
    return runner_of(real_model)


@pytest.fixture(scope="module")
def prompts(tokenizer: HfTokenizer) -> list[list[int]]:
    asked = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in _QUESTIONS]
    return asked + [tokenizer.encode(text) for text in _BEGINNINGS]


def test_its_logits_and_a_few_answers_are_those_of_transformers(
    real_model: Path,
    runner: TorchRunner,
    prompts: list[list[int]],
) -> None:
    """The quick check: each token of our answers is the one that transformers finds likeliest."""
    reference = quick_reference(real_model)
    ours, expected = logits_of(open_model(real_model), prompts[0]), theirs(reference, prompts[0])
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
    chosen = {key: (prompts[key], greedy(16)) for key in (0, 4, 12, 15)}
    outputs = Mix(runner, step_tokens=24, max_running=3).run(chosen)
    for key, output in outputs.items():
        logits = theirs(reference, prompts[key] + output)[len(prompts[key]) - 1 : -1]
        assert logits.argmax(-1).tolist() == output


def test_it_answers_a_question(runner: TorchRunner, tokenizer: HfTokenizer) -> None:
    prompt = tokenizer.render_chat([{"role": "user", "content": "What is the capital of France?"}])
    output = Mix(runner).run({0: (prompt, greedy(12))})[0]
    assert "Paris" in tokenizer.decode(output)


@pytest.fixture(scope="module")
def reference(real_model: Path) -> Any:
    return own_reference(real_model)


@pytest.mark.slow
def test_every_answer_is_transformers_own_alone_and_in_any_mix(
    reference: Any, runner: TorchRunner, prompts: list[list[int]], rounds: int
) -> None:
    wanted = {key: (prompt, greedy(48)) for key, prompt in enumerate(prompts)}
    expected = {key: generated(reference, prompt, 48) for key, prompt in enumerate(prompts)}
    for key in wanted:
        assert Mix(runner).run({key: wanted[key]}) == {key: expected[key]}
    assert Mix(runner).run(wanted) == expected
    preemptions = 0
    for seed in range(3 * rounds):
        mix = Mix(runner, seed=seed, step_tokens=16 + 12 * seed, kv_tokens=512, max_running=12)
        assert mix.run(wanted) == expected
        preemptions += mix.preemptions
    assert preemptions > 0


@pytest.mark.slow
def test_bfloat16_stays_close(real_model: Path, reference: Any, prompts: list[list[int]]) -> None:
    exact = theirs(reference, prompts[1]).log_softmax(-1)
    rough = logits_of(open_model(real_model), prompts[1], dtype=torch.bfloat16).log_softmax(-1)
    divergence = (exact.exp() * (exact - rough)).sum(-1)
    assert divergence.mean() < 0.01
