"""The runner over the tiny Llama: what a batch's mix, order and history must not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.batch import Batch
from inference.engine.layers.linear import PackedLinear, PlainLinear, packing_works
from inference.engine.loading import load_runner
from inference.engine.models.files import open_model
from inference.engine.runner import TorchRunner
from inference.generation import SamplingParams
from tests.unit.engine.model_bench import CPU, Mix, config, generated, greedy, runner_of, sequence

_PROMPTS = [
    [256, *text]
    for text in (
        b"a",
        b"hello there",
        b"hello there, you",
        b"a longer prompt that fills more than one block of the cache, and goes on",
        b"hello there, you who read this and wonder what it says about anything",
        b"x" * 120,
    )
]


@pytest.fixture(scope="module")
def runner(tiny_llama: Path) -> TorchRunner:
    return runner_of(tiny_llama)


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> list[list[int]]:
    """What transformers' `generate` gives for each prompt, alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    return [generated(model.eval(), prompt, 40) for prompt in _PROMPTS]


def test_its_answers_vary(expected: list[list[int]]) -> None:
    assert all(len(set(answer)) > 8 for answer in expected)
    assert len({tuple(answer) for answer in expected}) == len(expected)


def test_alone_it_gives_what_transformers_gives(
    runner: TorchRunner, expected: list[list[int]]
) -> None:
    for prompt, answer in zip(_PROMPTS, expected, strict=True):
        assert Mix(runner).run({0: (prompt, greedy(40))}) == {0: answer}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    step_tokens=st.integers(8, 64),
    max_running=st.integers(1, 8),
    blocks=st.integers(11, 40),
    prefix_caching=st.booleans(),
)
def test_in_any_schedule_it_gives_the_same(
    runner: TorchRunner,
    expected: list[list[int]],
    seed: int,
    step_tokens: int,
    max_running: int,
    blocks: int,
    prefix_caching: bool,
) -> None:
    mix = Mix(
        runner,
        seed=seed,
        step_tokens=step_tokens,
        max_running=max_running,
        kv_tokens=blocks * 16,
        prefix_caching=prefix_caching,
    )
    wanted = {key: (_PROMPTS[key % 6], greedy(40)) for key in range(7)}
    assert mix.run(wanted) == {key: expected[key % 6] for key in range(7)}


def test_a_preemption_changes_nothing(runner: TorchRunner, expected: list[list[int]]) -> None:
    mix = Mix(runner, kv_tokens=12 * 16, step_tokens=32, max_running=6)
    wanted = {key: (prompt, greedy(40)) for key, prompt in enumerate(_PROMPTS)}
    assert mix.run(wanted) == dict(enumerate(expected))
    assert mix.preemptions > 0


def test_a_seeded_text_is_the_same_alone_batched_preempted_and_again(runner: TorchRunner) -> None:
    wanted = {
        key: (
            prompt,
            SamplingParams(
                temperature=1.2,
                top_p=0.95 if key % 2 else 1.0,
                frequency_penalty=key / 10,
                seed=key % 3,
                max_tokens=40,
                ignore_eos=True,
            ),
        )
        for key, prompt in enumerate(_PROMPTS)
    }
    alone = {key: Mix(runner).run({key: wanted[key]})[key] for key in wanted}
    tight = Mix(runner, seed=1, kv_tokens=12 * 16, step_tokens=32, max_running=6)
    assert Mix(runner, seed=2).run(wanted) == alone
    assert tight.run(wanted) == alone
    assert tight.preemptions > 0
    assert len({tuple(answer) for answer in alone.values()}) == len(alone)


def test_a_seeded_text_continues_from_a_part_of_itself(runner: TorchRunner) -> None:
    def params(count: int) -> SamplingParams:
        return SamplingParams(temperature=1.0, seed=7, max_tokens=count, ignore_eos=True)

    whole = Mix(runner).run({0: (_PROMPTS[1], params(30))})[0]
    rest = Mix(runner).run({5: (_PROMPTS[1] + whole[:12], params(18))})[5]
    assert whole[:12] + rest == whole


def test_logprobs_of_the_prompt_do_not_depend_on_the_chunks(tiny_llama: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    prompt = _PROMPTS[3]
    with torch.inference_mode():
        theirs = model.eval()(torch.tensor([prompt])).logits[0].log_softmax(-1)
    runner, asking = runner_of(tiny_llama), sequence(prompt, prompt_logprobs=2)
    asking.block_ids = list(range(8))
    for start in range(0, len(prompt), 17):
        batch = Batch()
        batch.append(asking, min(17, len(prompt) - start))
        found = runner.run(batch).prompt_logprobs.get(0, [])
        asking.prompt_logprobs += found
        asking.num_computed = min(start + 17, len(prompt))
    assert [entry.token_id for entry in asking.prompt_logprobs] == prompt[1:]
    for place, entry in enumerate(asking.prompt_logprobs):
        assert entry.logprob == pytest.approx(theirs[place, prompt[place + 1]].item(), abs=1e-3)
        assert entry.top_ids == tuple(theirs[place].topk(2).indices.tolist())


def test_an_empty_batch_gives_nothing(runner: TorchRunner) -> None:
    sampled = runner.run(Batch())
    assert (sampled.token_ids, sampled.logprobs, sampled.prompt_logprobs) == ([], [], {})


def test_bfloat16_is_close_to_float32(tiny_llama: Path) -> None:
    files = open_model(tiny_llama)
    reports = {}
    for dtype in (torch.float32, torch.bfloat16):
        asking = sequence(_PROMPTS[3], logprobs=260)
        asking.block_ids = list(range(8))
        batch = Batch()
        batch.append(asking, asking.num_pending)
        runner = load_runner(files, config=config(), dtype=dtype, device=CPU)
        report = runner.run(batch).logprobs[0]
        assert report is not None
        reports[dtype] = dict(zip(report.top_ids, report.top_logprobs, strict=True))
    exact = torch.tensor([reports[torch.float32][token] for token in range(260)])
    rough = torch.tensor([reports[torch.bfloat16][token] for token in range(260)])
    assert (exact.exp() * (exact - rough)).sum() < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_packed_products_are_the_plain_ones(dtype: torch.dtype, rows: int) -> None:
    if not packing_works(device=CPU, dtype=dtype):
        pytest.skip("this build of torch has no packed products for this CPU")
    random = torch.Generator().manual_seed(rows)
    weight = torch.randn(96, 64, generator=random).to(dtype)
    bias, x = torch.randn(96, generator=random).to(dtype), torch.randn(rows, 64, generator=random)
    for own in (bias, None):
        plain = PlainLinear(weight, own)(x.to(dtype)).float()
        packed = PackedLinear(weight, own)(x.to(dtype)).float()
        near = 1e-4 if dtype is torch.float32 else 0.2
        assert torch.allclose(packed, plain, atol=near)
