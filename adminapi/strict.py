"""Serializer fields that take exactly what they name, for calls that stop other people's work.

REST framework's own fields coerce: "false" becomes a boolean, 1 becomes "1", unknown fields pass
unseen. Here a JSON value of another type is an error, and so is a field that nobody declared.
Knows nothing of what is aborted or listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

UNKNOWN_FIELD = "There is no such field."


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not declare."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(str(name) for name in data.keys() - self.fields.keys())
            if unknown:
                raise serializers.ValidationError({name: [UNKNOWN_FIELD] for name in unknown})
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """A JSON boolean."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Text(serializers.CharField):
    """A JSON string, kept as it was sent; one of nothing but spaces counts as blank."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


class Seconds(serializers.FloatField):
    """A JSON number: finite, not a boolean, not a string."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        if isinstance(data, int) and abs(data) > 2**53:
            self.fail("invalid")
        if not math.isfinite(data):
            self.fail("invalid")
        return float(data)


class OneOf(serializers.ChoiceField):
    """A JSON string out of a fixed set."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid_choice", input=data)
        return str(super().to_internal_value(data))


class TextMap(serializers.DictField):
    """A JSON object from names to strings, with at least one entry."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=Text(max_length=512, allow_blank=True), allow_empty=False, **kwargs)
