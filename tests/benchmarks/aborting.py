"""How quickly an abort is answered, takes effect, and is proven, while streams run.

`python -m tests.benchmarks.aborting [--streams 32] [--rounds 20]`

Starts the real processes with the default model. Each round opens the streams, waits until each
has brought some tokens, aborts all of them in one call on a warm server, and follows the receipt
over its websocket. `late`: chunks that arrived more than one step after the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import websockets

from tests.acceptance.stack import Stack, running
from tests.benchmarks.serving import Load, body
from tests.benchmarks.streams import Stream, call, percentile, stream

WARM_TOKENS = 10


@dataclass(slots=True)
class Round:
    """Milliseconds from the call; `step` is the median gap between tokens before it."""

    answered: float
    stopped: float
    proven: float
    step: float
    late: int
    reasons: set[str | None] = field(default_factory=set)


async def abort_all_of(base: str, key: str, watch_url: str, *, streams: int) -> Round:
    warm = asyncio.Event()
    live: list[Stream] = []

    def on_token(one: Stream) -> None:
        if len(one.token_times) == WARM_TOKENS:
            live.append(one)
            if len(live) == streams:
                warm.set()

    ids = [uuid.uuid4().hex for _ in range(streams)]
    load = Load(streams, streams, max_tokens=1500)
    opened = [
        asyncio.create_task(
            stream(base, key, body(number, load), on_token=on_token, **{"X-Request-Id": one})
        )
        for number, one in enumerate(ids)
    ]
    await asyncio.wait_for(warm.wait(), 120)
    called = time.perf_counter()
    status, receipt = await call(base, key, "/v1/abort_requests", {"req_ids": ids})
    answered = time.perf_counter()
    assert status == 202, receipt
    proven = asyncio.create_task(_proven(watch_url, key, receipt["id"]))
    done = await asyncio.gather(*opened)
    return _round(done, called, answered, await proven)


def _round(done: list[Stream], called: float, answered: float, proven: float) -> Round:
    before = [gap for one in done for gap in one.gaps]
    step = percentile(before, 0.5)
    late = sum(moment > answered + step for one in done for moment in one.token_times)
    return Round(
        answered=(answered - called) * 1e3,
        stopped=(max(one.ended_at for one in done) - called) * 1e3,
        proven=(proven - called) * 1e3,
        step=step * 1e3,
        late=late,
        reasons={one.finish_reason for one in done},
    )


async def _proven(watch_url: str, key: str, abort_id: str) -> float:
    """When the receipt was pushed as done."""
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{watch_url}/ws/aborts/{abort_id}/"
    async with websockets.connect(url, additional_headers=headers) as socket:
        async for message in socket:
            if '"done"' in str(message) and _is_done(json.loads(message)):
                return time.perf_counter()
    return time.perf_counter()


def _is_done(message: object) -> bool:
    if isinstance(message, dict):
        return message.get("status") == "done" or any(map(_is_done, message.values()))
    return isinstance(message, list) and any(map(_is_done, message))


def report(rounds: list[Round]) -> None:
    for name in ("answered", "stopped", "proven", "step"):
        values = [getattr(one, name) for one in rounds]
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        print(f"| {name} | {p50:.1f} | {p99:.1f} |")
    after = [one.proven - one.stopped for one in rounds]
    print(
        f"| proven after the last stream's end | {percentile(after, 0.5):.1f} | {max(after):.1f} |"
    )
    print(f"| tokens later than one step after the answer | {sum(one.late for one in rounds)} | |")
    print(f"ends: {set.union(*(one.reasons for one in rounds))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hl-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        (home / "models").symlink_to(Path("build/models").resolve())
        with running(home) as stack:
            rounds = measure(stack, streams=options.streams, count=options.rounds)
    print(f"| ms, {options.streams} streams, {options.rounds} rounds | p50 | p99 |")
    print("| --- | --- | --- |")
    report(rounds)


def measure(stack: Stack, *, streams: int, count: int) -> list[Round]:
    async def all_rounds() -> list[Round]:
        found = [
            await abort_all_of(stack.url, stack.key(), stack.websocket_url, streams=streams)
            for _ in range(count + 1)
        ]
        return found[1:]

    return asyncio.run(all_rounds())


if __name__ == "__main__":
    main()
