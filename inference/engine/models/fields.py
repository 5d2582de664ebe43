"""Typed reads from the loose mappings that model files carry (config.json, GGUF metadata).

A value of the wrong type is the file's fault and is reported with its name. Knows no names of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.engine.models.errors import CorruptModelError

_LARGEST_NUMBER = 1e300


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping with a name, read by type. Missing and null are the same."""

    values: Mapping[str, Any]
    origin: str

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        found = self._found(name, default)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong(name, "a whole number", found)
        return found

    def count(self, name: str, *, most: int) -> int:
        """How many there are of something, at least one; bounded before it is used."""
        found = self.integer(name)
        if not 0 < found <= most:
            raise self._wrong(name, f"from 1 to {most}", found)
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found = self._found(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._wrong(name, "a number", found)
        if not abs(found) <= _LARGEST_NUMBER:  # NaN is not below it either
            raise self._wrong(name, "a finite number", found)
        return float(found)

    def number_or_none(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._found(name, default)
        if not isinstance(found, bool):
            raise self._wrong(name, "true or false", found)
        return found

    def text(self, name: str, default: str | None = None) -> str:
        found = self._found(name, default)
        if not isinstance(found, str):
            raise self._wrong(name, "a text", found)
        return found

    def items(self, name: str) -> list[Any]:
        """The list of that name; an empty one where there is none."""
        found = self._found(name, [])
        if not isinstance(found, list):
            raise self._wrong(name, "a list", found)
        return found

    def texts(self, name: str) -> list[str]:
        """The list of texts of that name; an empty one where there is none."""
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise self._wrong(name, "a list of texts", found)
        return found

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def inner(self, name: str) -> Fields:
        """The mapping of that name; an empty one where there is none."""
        found = self._found(name, {})
        if not isinstance(found, dict):
            raise self._wrong(name, "a mapping", found)
        return Fields(found, f"{self.origin}: {name}")

    def _found(self, name: str, default: Any) -> Any:
        found = self.values.get(name)
        if found is not None:
            return found
        if default is None:
            msg = f"{self.origin} lacks {name!r}"
            raise CorruptModelError(msg)
        return default

    def _wrong(self, name: str, expected: str, found: object) -> CorruptModelError:
        return CorruptModelError(f"{self.origin}: {name!r} must be {expected}, not {found!s:.60}")
