"""A request's life as phases with durations, for the drawing on its page.

Phases follow from the recorded transitions alone; a running phase is split where the first token
came. Times of two processes may disagree by a little: no phase is shorter than nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from inference.lifecycle import TERMINAL, State

# The drawing's own units; the browser stretches them to the page.
WIDTH = 1000.0
NARROWEST = 3.0


class Step(Protocol):
    """What this needs of a transition."""

    @property
    def choice_index(self) -> int | None: ...
    @property
    def to_state(self) -> str: ...
    @property
    def at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Phase:
    """`name` is a state, or "prefill" and "decode" for the halves of running. Seconds."""

    name: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase as drawn: `x` and `width` in units of `WIDTH`."""

    phase: Phase
    x: str
    width: str
    start_text: str
    duration_text: str
    share_text: str


def phases(steps: Iterable[Step], *, first_token_at: datetime | None, now: datetime) -> list[Phase]:
    """Oldest first. A request that has not ended is in its last phase until `now`."""
    moments = [(step.to_state, step.at) for step in steps if step.choice_index is None]
    if not moments:
        return []
    begin = moments[0][1]
    ends = [at for _, at in moments[1:]] + [now]
    spans = [
        span
        for (state, start), end in zip(moments, ends, strict=True)
        if state not in TERMINAL
        for span in _split(state, start, end, first_token_at)
    ]
    return [
        Phase(name=name, start=_seconds(begin, start), seconds=_seconds(start, end))
        for name, start, end in spans
    ]


def _split(
    state: str, start: datetime, end: datetime, first_token_at: datetime | None
) -> Iterator[tuple[str, datetime, datetime]]:
    if state != State.RUNNING:
        yield state, start, end
    elif first_token_at is None or first_token_at >= end:
        yield "prefill", start, end
    elif first_token_at <= start:
        yield "decode", start, end
    else:
        yield "prefill", start, first_token_at
        yield "decode", first_token_at, end


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


def bars(found: list[Phase]) -> list[Bar]:
    """Widths in proportion, but none too narrow to see; together they fill `WIDTH`."""
    total = sum(phase.seconds for phase in found)
    raw = [max(NARROWEST, WIDTH * phase.seconds / total) if total else 1.0 for phase in found]
    scale = WIDTH / sum(raw) if raw else 1.0
    drawn: list[Bar] = []
    x = 0.0
    for phase, width in zip(found, raw, strict=True):
        drawn.append(_bar(phase, x=x, width=width * scale, total=total))
        x += width * scale
    return drawn


def _bar(phase: Phase, *, x: float, width: float, total: float) -> Bar:
    return Bar(
        phase=phase,
        x=f"{x:.2f}",
        width=f"{width:.2f}",
        start_text=f"+{duration(phase.start)}",
        duration_text=duration(phase.seconds),
        share_text=f"{100 * phase.seconds / total:.0f} %" if total else "",
    )


def duration(seconds: float | None) -> str:
    """A duration as a person reads it: 4 ms, 1.25 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return _long_duration(round(seconds))


def _long_duration(seconds: int) -> str:
    for size, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // part} {part_name}"
    return f"{seconds // 60} min {seconds % 60} s"
