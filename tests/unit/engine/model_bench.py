"""Runs a model through the real runner and scheduler, and transformers' beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from inference.engine.batch import Chunk
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine, NewSequence
from inference.engine.kv_cache import KvCache, PageMap
from inference.engine.layers.step import StepBuilder
from inference.engine.loading import load_runner
from inference.engine.models.files import ModelFiles, open_model
from inference.engine.models.llama import Llama
from inference.engine.models.placement import Placement
from inference.engine.runner import TorchRunner
from inference.engine.sequence import Sequence
from inference.engine.tokenizer import Tokenizer
from inference.generation import SamplingParams
from tests.doubles.byte_tokenizer import ByteTokenizer

CPU = torch.device("cpu")


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"kv_tokens": 2048, "max_model_len": 512, "block_size": 16} | changes)


def runner_of(path: Path, **changes: Any) -> TorchRunner:
    return load_runner(open_model(path), config=config(**changes), dtype=torch.float32, device=CPU)


def sequence(prompt_ids: list[int], *, seq_id: int = 0, **params: Any) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        prompt_ids=prompt_ids,
        params=SamplingParams(**{"temperature": 0.0} | params),
        eos_ids=frozenset(),
        max_new_tokens=8,
    )


def logits_of(
    files: ModelFiles, token_ids: list[int], *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Our logits [T, vocab] at every position of one prompt."""
    shape = files.config
    model = Llama(shape, files.weights, Placement(dtype, CPU, 512))
    pages = PageMap(64, 16, shape.num_kv_heads, CPU)
    cache = KvCache(pages, num_layers=shape.num_layers, head_dim=shape.head_dim, dtype=dtype)
    steps = StepBuilder(pages, spans=shape.windows, dtype=dtype, device=CPU)
    whole = sequence(token_ids)
    whole.block_ids = list(range(pages.blocks_for(len(token_ids))))
    with torch.inference_mode():
        step = steps.build([Chunk(whole, 0, len(token_ids), samples=True)])
        return model.logits(model.forward(step, cache))


def theirs(model: Any, token_ids: list[int]) -> torch.Tensor:
    """The logits that transformers gives for it."""
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return found


def generated(model: Any, prompt_ids: list[int], count: int) -> list[int]:
    """What transformers' own `generate` adds, greedily, with nothing to stop it."""
    found = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = found[0, len(prompt_ids) :].tolist()
    return tokens


class Mix:
    """Drives an engine over a real runner, letting sequences in at random moments."""

    def __init__(
        self,
        runner: TorchRunner,
        *,
        tokenizer: Tokenizer | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> None:
        self.engine = Engine(config(**changes), runner, tokenizer or ByteTokenizer())
        self.random = random.Random(seed)
        self.preemptions = 0
        self.outputs: dict[int, list[int]] = {}

    def run(self, wanted: dict[int, tuple[list[int], SamplingParams]]) -> dict[int, list[int]]:
        """Token ids of each, by key; the cache's bookkeeping is checked after every step."""
        waiting = list(wanted)
        self.random.shuffle(waiting)
        while waiting or self.engine.has_work:
            for key in [waiting.pop() for _ in waiting[: self.random.randint(0, 3)]]:
                prompt_ids, params = wanted[key]
                self.engine.add(NewSequence(seq_id=key, prompt_ids=prompt_ids, params=params))
            for update in self.engine.step().updates:
                self.outputs.setdefault(update.seq_id, []).extend(update.token_ids)
                self.preemptions += update.preempted
                assert update.error is None
            self.engine.check_integrity()
        return self.outputs


def greedy(count: int, **params: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, **params)
