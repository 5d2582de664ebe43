"""Whole models by the native kernels, beside the same models by torch's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inference.engine.batch import Chunk
from inference.engine.config import EngineConfig
from inference.engine.hf_tokenizer import load_tokenizer
from inference.engine.kv_cache import KvCache, PageMap
from inference.engine.layers.step import StepBuilder
from inference.engine.loading import chosen_library, load_engine_parts, load_runner
from inference.engine.models.building import built_model
from inference.engine.models.files import ModelFiles, open_model
from inference.engine.models.llama import Llama
from inference.engine.models.model import Model
from inference.engine.models.native_llama import NativeLlama
from inference.engine.native import checking
from inference.engine.native.library import Library
from inference.engine.runner import TorchRunner
from tests.unit.engine.model_bench import CPU, Mix, config, greedy, sequence
from tests.unit.engine.test_models_families import CASES

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_TEXTS = ["Why is the sky blue?", "def fibonacci(n):", "The capital of Australia is", "1, 2, 3,"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def family(request: pytest.FixtureRequest, tmp_path: Path) -> ModelFiles:
    """A random model of that family, of sizes that the kernels take."""
    name, changes = request.param
    torch.manual_seed(11)
    shape = getattr(transformers, f"{name}Config")(**_SIZES | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(shape).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(tmp_path)
    return open_model(tmp_path)


def model_of(files: ModelFiles, dtype: torch.dtype, library: Library | None) -> Model:
    return built_model(files, dtype=dtype, device=CPU, max_tokens=512, library=library)


def logits_by(model: Model, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    """Logits [T, vocab] of a prompt that is computed in chunks of those lengths."""
    shape, dtype = model.config, model.placement.dtype
    pages = PageMap(40, 16, shape.num_kv_heads, CPU)
    cache = KvCache(pages, num_layers=shape.num_layers, head_dim=shape.head_dim, dtype=dtype)
    steps = StepBuilder(pages, spans=model.masked_spans, dtype=dtype, device=CPU)
    whole, start, found = sequence(token_ids), 0, []
    whole.block_ids = list(reversed(range(pages.blocks_for(len(token_ids)))))
    with torch.inference_mode():
        for length in chunks:
            step = steps.build([Chunk(whole, start, length, samples=True)])
            found.append(model.logits(model.forward(step, cache)).clone())
            start += length
    return torch.cat(found)


def tokens(count: int) -> list[int]:
    random = torch.Generator().manual_seed(5)
    found: list[int] = torch.randint(3, 300, (count,), generator=random).tolist()
    return found


def divergence(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The mean Kullback-Leibler divergence from what is expected, in nats."""
    ours, theirs = found.log_softmax(-1), expected.log_softmax(-1)
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def test_it_gives_each_family_s_logits(family: ModelFiles, library: Library) -> None:
    prompt = tokens(90)
    expected = logits_by(model_of(family, torch.float32, None), prompt, [90])
    model = model_of(family, torch.float32, library)
    assert isinstance(model, NativeLlama)
    for chunks in ([90], [1, 33, 2, 1, 1, 52]):
        found = logits_by(model, prompt, chunks)
        assert (found - expected).abs().max() <= 5e-5 * expected.abs().max()


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.1), (torch.int8, 0.3)])
def test_it_comes_near_to_each_family_s_logits_in_fewer_bits(
    family: ModelFiles, library: Library, dtype: torch.dtype, most: float
) -> None:
    """Random weights magnify each rounding more than trained ones do: see the default model."""
    prompt = tokens(60)
    expected = logits_by(model_of(family, torch.float32, None), prompt, [60])
    model = model_of(family, dtype, library)
    assert isinstance(model, NativeLlama)
    found = logits_by(model, prompt, [60])
    assert (found - expected).norm() <= most * expected.norm()


def test_it_leaves_to_torch_what_the_kernels_do_not_take(
    tiny_llama: Path, tmp_path: Path, library: Library
) -> None:
    shape = transformers.LlamaConfig(**_SIZES | {"hidden_size": 48, "head_dim": 12})
    transformers.LlamaForCausalLM(shape).save_pretrained(tmp_path)
    files = open_model(tmp_path)
    assert isinstance(model_of(files, torch.float32, library), Llama)
    assert isinstance(model_of(files, torch.int8, library), Llama)
    assert isinstance(model_of(open_model(tiny_llama), torch.float32, None), Llama)
    prompt = tokens(40)
    expected = logits_by(model_of(files, torch.float32, None), prompt, [40])
    found = logits_by(model_of(files, torch.int8, None), prompt, [40])
    assert (found - expected).norm() <= 0.1 * expected.norm()


def test_it_generates_the_same_text_alone_and_in_any_company(
    tiny_llama: Path, library: Library
) -> None:
    files = open_model(tiny_llama)
    wanted = {key: (tokens(key * 7 % 60 + 1), greedy(24)) for key in range(8)}
    wanted = {key: ([t % 250 for t in prompt], params) for key, (prompt, params) in wanted.items()}
    plain = load_runner(files, config=config(), dtype=torch.float32, device=CPU)
    native = load_runner(files, config=config(), dtype=torch.float32, device=CPU, library=library)
    expected = Mix(plain, step_tokens=300).run(wanted)
    for seed in range(3):
        mix = Mix(native, seed=seed, step_tokens=17, max_running=4, kv_tokens=160)
        assert mix.run(wanted) == expected


def test_it_is_chosen_by_name(
    tiny_llama: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.engine.loading.native_library", lambda folder: library)
    small = EngineConfig(kv_tokens=1024, max_model_len=256)
    chosen = {
        (kernels, dtype): load_engine_parts(
            tiny_llama, config=small, dtype=dtype, device="cpu", threads=1, kernels=kernels
        ).runner
        for kernels in ("auto", "torch", "native")
        for dtype in ("float32", "int8")
    }
    for (kernels, _), runner in chosen.items():
        assert isinstance(runner._model, Llama if kernels == "torch" else NativeLlama)
    with pytest.raises(ValueError, match="kernels 'fast' are not known"):
        chosen_library("fast", CPU, None)


def test_it_does_without_native_kernels_unless_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checking, "found_recipe", lambda: None)
    assert chosen_library("auto", CPU, tmp_path) is None
    assert chosen_library("native", torch.device("cuda"), tmp_path) is None
    with pytest.raises(ValueError, match="cannot be made"):
        chosen_library("native", CPU, tmp_path)


@pytest.fixture(scope="module")
def real_files(real_model: Path) -> ModelFiles:
    return open_model(real_model)


@pytest.fixture(scope="module")
def prompts(real_files: ModelFiles) -> list[list[int]]:
    tokenizer = load_tokenizer(real_files)
    return [tokenizer.render_chat([{"role": "user", "content": text}]) for text in _TEXTS]


@pytest.fixture(scope="module")
def real_runners(real_files: ModelFiles, library: Library) -> tuple[TorchRunner, TorchRunner]:
    """By torch, and by the native kernels."""

    def made(found: Library | None) -> TorchRunner:
        return load_runner(
            real_files, config=config(), dtype=torch.float32, device=CPU, library=found
        )

    return made(None), made(library)


def test_the_default_model_answers_as_it_does_by_torch(
    real_runners: tuple[TorchRunner, TorchRunner], prompts: list[list[int]]
) -> None:
    wanted = {key: (prompt, greedy(12)) for key, prompt in enumerate(prompts)}
    by_torch, by_kernels = real_runners
    expected = Mix(by_torch, step_tokens=200).run(wanted)
    found = Mix(by_kernels, step_tokens=40, max_running=3).run(wanted)
    assert found == expected


@pytest.mark.slow
def test_the_default_model_answers_at_length_as_it_does_by_torch(
    real_runners: tuple[TorchRunner, TorchRunner], prompts: list[list[int]]
) -> None:
    wanted = {key: (prompt, greedy(200)) for key, prompt in enumerate(prompts)}
    expected = Mix(real_runners[0], step_tokens=300).run(wanted)
    assert Mix(real_runners[1], step_tokens=24, max_running=3).run(wanted) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.001), (torch.int8, 0.01)])
def test_the_default_model_thinks_much_the_same_in_fewer_bits(
    real_files: ModelFiles,
    prompts: list[list[int]],
    library: Library,
    dtype: torch.dtype,
    most: float,
) -> None:
    prompt = [token for each in prompts for token in each]
    expected = logits_by(model_of(real_files, torch.float32, None), prompt, [len(prompt)])
    found = logits_by(model_of(real_files, dtype, library), prompt, [len(prompt)])
    assert divergence(found, expected) <= most
