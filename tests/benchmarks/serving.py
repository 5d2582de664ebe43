"""Tokens a second through HTTP, beside what other servers reach on this kind of machine.

`python -m tests.benchmarks.serving [--dtypes bfloat16,int8] [--concurrency 1,8,32] [--long]`

Starts the real processes with the default model, once per precision, and drives them in a closed
loop: prompts of about 54 tokens, 128 tokens out, greedy, EOS ignored, streamed. The figures of the
others were measured with the same load on two cores of the same kind; read the ratios, on a quiet
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.stack import Stack, running
from tests.benchmarks.streams import Stream, percentile, prompt, stream

MODEL = "smollm2-135m-instruct"
# vLLM 0.32, CPU build, bfloat16: tokens a second at 1, 8 and 32 clients.
VLLM = {1: 38.5, 8: 229.0, 32: 350.0}
VLLM_LONG = 64.0


@dataclass(frozen=True, slots=True)
class Load:
    concurrency: int
    requests: int
    words: int = 42
    max_tokens: int = 128


def body(number: int, load: Load) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": prompt(number, load.words),
        "max_tokens": load.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


async def drive(base: str, key: str, load: Load, *, first: int) -> tuple[list[Stream], float]:
    """Every client sends its next request when its last one has ended. Streams and seconds."""
    numbers = iter(range(first, first + load.requests))
    done: list[Stream] = []

    async def client() -> None:
        done.extend([await stream(base, key, body(number, load)) for number in numbers])

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(load.concurrency)))
    return done, time.perf_counter() - started


def row(dtype: str, load: Load, done: list[Stream], seconds: float, reference: float) -> str:
    rate = sum(one.output_tokens for one in done) / seconds
    gaps = [gap for one in done for gap in one.gaps]
    first = percentile([one.first_token_after for one in done], 0.5)
    prompt_tokens = sum(one.prompt_tokens for one in done) // len(done)
    return (
        f"| {dtype} | {load.concurrency} | {prompt_tokens} | {rate:.1f} | {rate / reference:.2f}"
        f" | {first:.2f} | {percentile(gaps, 0.5) * 1e3:.0f} | {percentile(gaps, 0.99) * 1e3:.0f} |"
    )


def measure(stack: Stack, dtype: str, loads: list[Load]) -> None:
    key = stack.key()
    asyncio.run(drive(stack.url, key, Load(2, 4, max_tokens=16), first=10**6))
    for number, load in enumerate(loads):
        done, seconds = asyncio.run(drive(stack.url, key, load, first=number * 10_000))
        reference = VLLM_LONG if load.words > 500 else VLLM[load.concurrency]
        print(row(dtype, load, done, seconds, reference), flush=True)


def rss(stack: Stack) -> float:
    """MiB of the engine process."""
    pid = stack.service("inference.worker").pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--long", action="store_true", help="prompts of about 900 words as well")
    options = parser.parse_args()
    loads = [Load(n, {1: 4, 8: 24}.get(n, 3 * n)) for n in map(int, options.concurrency.split(","))]
    loads += [Load(32, 32, words=700)] if options.long else []
    print("| precision | clients | prompt | tok/s | x vLLM | TTFT p50 s | gap p50 ms | p99 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for dtype in options.dtypes.split(","):
        with tempfile.TemporaryDirectory(prefix="hl-") as folder:
            models = Path("build/models").resolve()
            home = Path(folder) / "home"
            home.mkdir()
            (home / "models").symlink_to(models)
            with running(home, HALTLINE_DTYPE=dtype) as stack:
                measure(stack, dtype, loads)
                print(f"engine process: {rss(stack):.0f} MiB resident ({dtype})", flush=True)


if __name__ == "__main__":
    main()
