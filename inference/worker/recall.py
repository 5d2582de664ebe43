"""What is remembered for a while and no longer: aborts that came too early, requests that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recall(Generic[Key, Value]):
    """A mapping that forgets after `seconds`, and before that the oldest above `limit`.

    Nothing runs in the background: what is due is forgotten at the next call.
    """

    def __init__(self, *, seconds: float, limit: int, clock: Callable[[], float]) -> None:
        self._seconds, self._limit, self._clock = seconds, limit, clock
        self._items: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def put(self, key: Key, value: Value) -> None:
        """Remember from now on; the same key again starts its time anew."""
        self._items.pop(key, None)
        self._items[key] = (self._clock() + self._seconds, value)
        self._forget()

    def get(self, key: Key) -> Value | None:
        self._forget()
        item = self._items.get(key)
        return None if item is None else item[1]

    def pop(self, key: Key) -> Value | None:
        self._forget()
        item = self._items.pop(key, None)
        return None if item is None else item[1]

    def __contains__(self, key: Key) -> bool:
        self._forget()
        return key in self._items

    def __len__(self) -> int:
        self._forget()
        return len(self._items)

    def _forget(self) -> None:
        """All live equally long, so the oldest is always the first that is due."""
        now = self._clock()
        while self._items:
            due, _ = next(iter(self._items.values()))
            if due > now and len(self._items) <= self._limit:
                return
            self._items.popitem(last=False)
