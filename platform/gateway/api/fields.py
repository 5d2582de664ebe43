"""Serializer fields that take exactly the JSON type they name; null stands for "not given".

REST framework's own fields coerce ("5" becomes 5, 1 becomes True) and let unknown fields pass.
Knows nothing of what the fields are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

LARGEST_INTEGER = 2**63 - 1


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not declare."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(str(name) for name in data.keys() - self.fields.keys())
            if unknown:
                raise serializers.ValidationError({unknown[0]: ["There is no such field."]})
        return super().to_internal_value(data)


def _optional(options: dict[str, Any]) -> dict[str, Any]:
    return (
        options if options.get("required") else {"required": False, "allow_null": True, **options}
    )


class Integer(serializers.IntegerField):
    """A JSON integer."""

    def __init__(self, **options: Any) -> None:
        bounds = {"min_value": -LARGEST_INTEGER, "max_value": LARGEST_INTEGER}
        super().__init__(**_optional({**bounds, **options}))

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class Number(serializers.FloatField):
    """A JSON number. `above`: an exclusive lower bound."""

    def __init__(self, *, above: float | None = None, **options: Any) -> None:
        self._above = above
        super().__init__(**_optional(options))

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float) or abs(data) > 1e15:
            self.fail("invalid")
        if not math.isfinite(data):
            self.fail("invalid")
        if self._above is not None and data <= self._above:
            raise serializers.ValidationError(f"Ensure this value is greater than {self._above:g}.")
        return float(data)


class Flag(serializers.BooleanField):
    """A JSON boolean."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_optional(options))

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Text(serializers.CharField):
    """A JSON string, as it was sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_optional({"trim_whitespace": False, **options}))

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


@extend_schema_field({"description": "Accepted for compatibility; changes nothing here."})
class Ignored(serializers.Field[Any, Any, Any, Any]):
    """A field of the OpenAI API that changes nothing here, whatever its value."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_optional(options))

    def to_internal_value(self, data: Any) -> None:  # noqa: ARG002 - whatever it is
        return None


@extend_schema_field({"description": "Accepted only where it asks for nothing."})
class Unsupported(serializers.Field[Any, Any, Any, Any]):
    """A field whose effect we do not have: refused, unless its value is one of `harmless`."""

    def __init__(self, *, harmless: tuple[Any, ...] = (), **options: Any) -> None:
        self._harmless = harmless
        super().__init__(**_optional(options))

    def to_internal_value(self, data: Any) -> None:
        if not any(type(data) is type(one) and data == one for one in self._harmless):
            raise serializers.ValidationError("This is not supported here.")


class Strings(serializers.ListField):
    """A JSON list of non-empty strings; a single one counts as a list of one."""

    def __init__(self, *, most: int, longest: int, **options: Any) -> None:
        child = Text(required=True, max_length=longest)
        super().__init__(child=child, max_length=most, **_optional(options))

    def to_internal_value(self, data: Any) -> list[str]:
        found: list[str] = super().to_internal_value([data] if isinstance(data, str) else data)
        return found


class TextMap(serializers.DictField):
    """A JSON object from names to strings."""

    def __init__(self, *, most: int = 16, **options: Any) -> None:
        self._most = most
        child = Text(required=True, max_length=512, allow_blank=True)
        super().__init__(child=child, **_optional(options))

    def to_internal_value(self, data: Any) -> dict[str, str]:
        found: dict[str, str] = super().to_internal_value(data)
        if len(found) > self._most:
            raise serializers.ValidationError(f"At most {self._most} entries.")
        if any(len(name) > 64 for name in found):
            raise serializers.ValidationError("A name has at most 64 characters.")
        return found
