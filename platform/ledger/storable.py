"""Text that every database takes: PostgreSQL refuses NUL and halves of surrogate pairs."""

from __future__ import annotations

import re
from typing import Any

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def text_storable(text: str) -> str:
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def json_storable(value: Any) -> Any:
    """The same JSON value; strings and keys that cannot be stored have replacement characters."""
    if isinstance(value, str):
        return text_storable(value)
    if isinstance(value, dict):
        return {text_storable(str(key)): json_storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_storable(one) for one in value]
    return value
