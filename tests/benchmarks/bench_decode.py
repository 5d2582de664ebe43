"""Decode and prefill steps of one model, side by side: torch's kernels and the native ones.

`python -m tests.benchmarks.bench_decode <model> [--batches 1,8,32] [--contexts 150,1000]`

Prints milliseconds a step (forward pass, head and argmax; no scheduling) and each variant's ratio
to the first. The variants take turns, step by step, and medians are compared: so a machine that
does other things as well disturbs all alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.batch import Chunk
from inference.engine.kv_cache import KvCache, PageMap
from inference.engine.layers.attention import AttentionKernel
from inference.engine.layers.native_attention import NativeAttention
from inference.engine.layers.step import StepBuilder
from inference.engine.models.files import ModelFiles, open_model
from inference.engine.models.llama import Llama
from inference.engine.models.model import Model
from inference.engine.models.native_llama import NativeLlama
from inference.engine.models.placement import Placement
from inference.engine.native.checking import native_library
from inference.engine.native.library import Library
from inference.engine.native.structures import Kind
from inference.engine.sequence import Sequence
from inference.generation import SamplingParams

CPU = torch.device("cpu")
BLOCK = 32


@dataclass
class Variant:
    name: str
    model: Model
    cache: KvCache
    steps: StepBuilder
    times: list[float]

    def run(self, chunks: list[Chunk]) -> None:
        started = time.perf_counter()
        step = self.steps.build(chunks)
        hidden = self.model.forward(step, self.cache)
        last = [row + chunk.length - 1 for row, chunk in zip(step.first_rows, chunks, strict=True)]
        self.model.logits(hidden[last]).argmax(-1).tolist()
        self.times.append(time.perf_counter() - started)


def variants(files: ModelFiles, library: Library, tokens: int, names: list[str]) -> list[Variant]:
    def torch_model(dtype: torch.dtype, kernel: AttentionKernel | None = None) -> Llama:
        return Llama(files.config, files.weights, Placement(dtype, CPU, 4096), kernel=kernel)

    def native(kind: Kind, dtype: torch.dtype) -> NativeLlama:
        placement = Placement(dtype, CPU, 4096)
        return NativeLlama(files.config, files.weights, placement, library=library, kind=kind)

    makers: dict[str, Callable[[], Model]] = {
        "torch bf16": lambda: torch_model(torch.bfloat16),
        "torch f32": lambda: torch_model(torch.float32),
        "bf16 + native attention": lambda: torch_model(torch.bfloat16, NativeAttention(library)),
        "native f32": lambda: native(Kind.FLOAT32, torch.float32),
        "native bf16": lambda: native(Kind.BFLOAT16, torch.bfloat16),
        "native int8": lambda: native(Kind.GROUPED8, torch.bfloat16),
    }
    return [variant(name, makers[name](), tokens) for name in names or makers]


def variant(name: str, model: Model, tokens: int) -> Variant:
    shape, dtype = model.config, model.placement.dtype
    pages = PageMap(tokens // BLOCK + 1, BLOCK, shape.num_kv_heads, CPU)
    cache = KvCache(pages, num_layers=shape.num_layers, head_dim=shape.head_dim, dtype=dtype)
    for layer in cache.layers:  # so that memory is touched, as it is in use
        layer.keys.normal_()
        layer.values.normal_()
    spans = model.masked_spans
    return Variant(name, model, cache, StepBuilder(pages, spans=spans, dtype=dtype, device=CPU), [])


def chunks_of(batch: int, context: int, length: int = 1) -> list[Chunk]:
    """Sequences whose blocks lie scattered, as after a while of serving."""
    each = -(-(context + length) // BLOCK)
    order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for row in range(batch):
        sequence = Sequence(
            seq_id=row,
            prompt_ids=[7 + row % 90] * (context + length),
            params=SamplingParams(temperature=0.0),
            eos_ids=frozenset(),
            max_new_tokens=8,
        )
        sequence.block_ids = order[row * each : (row + 1) * each]
        found.append(Chunk(sequence, context, length, samples=True))
    return found


def compare(all_variants: list[Variant], chunks: list[Chunk], label: str, seconds: float) -> None:
    for each in all_variants:
        each.run(chunks)
        each.times.clear()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(all_variants[0].times) < 5:
        for each in all_variants:
            each.run(chunks)
    medians = [statistics.median(each.times) * 1000 for each in all_variants]
    row = "".join(f"{ms:12.2f} ({medians[0] / ms:4.2f}x)" for ms in medians)
    print(f"{label:24}{row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--contexts", default="150,1000")
    parser.add_argument("--prefills", default="54,512")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="", help="names of variants, by commas")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    library = native_library()
    if library is None:
        raise SystemExit("there are no native kernels here")
    batches = [int(each) for each in args.batches.split(",") if each]
    contexts = [int(each) for each in args.contexts.split(",") if each]
    prefills = [int(each) for each in args.prefills.split(",") if each]
    tokens = max([b * (c + 2 * BLOCK) for b in batches for c in contexts] + [*prefills, 4096])
    names = [name for name in args.only.split(",") if name]
    with torch.inference_mode():
        chosen = variants(open_model(args.model), library, tokens, names)
        print(f"{'ms a step (ratio)':24}" + "".join(f"{each.name:>20}" for each in chosen))
        for context in contexts:
            for batch in batches:
                label = f"decode {batch} @ {context}"
                compare(chosen, chunks_of(batch, context), label, args.seconds)
        for length in prefills:
            compare(chosen, chunks_of(1, 0, length), f"prefill {length}", args.seconds)


if __name__ == "__main__":
    main()
