"""A light client for the benchmarks: one streamed completion over one socket, timed.

Raw HTTP/1.1, because the client shares the cores with what it measures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WORDS = [
    "harbour",
    "glacier",
    "lantern",
    "orchard",
    "compass",
    "saffron",
    "thunder",
    "velvet",
    "granite",
    "meadow",
    "falcon",
    "ribbon",
    "canyon",
    "whisper",
    "cobalt",
    "timber",
    "marble",
    "ember",
    "juniper",
    "anchor",
    "prairie",
    "willow",
    "beacon",
    "quartz",
]


def prompt(number: int, words: int) -> str:
    """Different for each number, so that no two share more than their beginning."""
    chosen = random.Random(number)
    return f"Story {number}. Tell of " + " ".join(chosen.choice(WORDS) for _ in range(words)) + "."


@dataclass(slots=True)
class Stream:
    """What one stream brought, in seconds of `time.perf_counter`."""

    sent_at: float = 0.0
    ended_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str | None = None

    @property
    def first_token_after(self) -> float:
        return self.token_times[0] - self.sent_at

    @property
    def gaps(self) -> list[float]:
        times = self.token_times
        return [after - before for before, after in itertools.pairwise(times)]


def request(base: str, key: str, path: str, body: dict[str, Any], **headers: str) -> bytes:
    payload = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {urlsplit(base).netloc}",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + payload


async def stream(
    base: str,
    key: str,
    body: dict[str, Any],
    *,
    on_token: Callable[[Stream], None] | None = None,
    **headers: str,
) -> Stream:
    """Raises `RuntimeError` for any status but 200."""
    found = Stream()
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 20)
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found.sent_at = time.perf_counter()
    writer.write(request(base, key, "/v1/completions", body, **headers))
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                _take(json.loads(line[6:]), found, on_token)
    finally:
        found.ended_at = time.perf_counter()
        writer.close()
    return found


def _take(chunk: dict[str, Any], found: Stream, on_token: Callable[[Stream], None] | None) -> None:
    if "error" in chunk:
        raise RuntimeError(chunk["error"])
    if usage := chunk.get("usage"):
        found.output_tokens = usage["completion_tokens"]
        found.prompt_tokens = usage["prompt_tokens"]
    for choice in chunk["choices"]:
        found.finish_reason = choice["finish_reason"] or found.finish_reason
        if choice["text"]:
            found.token_times.append(time.perf_counter())
            if on_token is not None:
                on_token(found)


async def call(base: str, key: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """One call on a socket of its own: status and JSON."""
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(request(base, key, path, body))
    answer = await reader.read()
    writer.close()
    head, _, payload = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(payload)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
