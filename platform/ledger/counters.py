"""Counts of what this process dropped or did, by name. They start at zero with the process."""

from __future__ import annotations

from collections import Counter
from threading import Lock

_counts: Counter[str] = Counter()
_lock = Lock()


def count(name: str, by: int = 1) -> None:
    if by:
        with _lock:
            _counts[name] += by


def counted() -> dict[str, int]:
    """A copy of all counts."""
    with _lock:
        return dict(_counts)
