"""The query of a GET as a plain dictionary, for a strict serializer to judge.

`metadata[job]=7` becomes `{"metadata": {"job": "7"}}`. Knows no field but by its shape.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import QueryDict

from inference.errors import InvalidRequestError

_NESTED = re.compile(r"(?P<name>\w+)\[(?P<key>[^\[\]]+)\]")


def query_fields(query: QueryDict) -> dict[str, Any]:
    """Raises `InvalidRequestError` for a parameter that is given twice."""
    fields: dict[str, Any] = {}
    for name, values in query.lists():
        if len(values) != 1:
            raise InvalidRequestError(f"{name} is given more than once.", param=name)
        nested = _NESTED.fullmatch(name)
        if nested is None:
            fields[name] = values[0]
        else:
            inner = fields.setdefault(nested["name"], {})
            _set(inner, nested["name"], nested["key"], values[0])
    return fields


def _set(inner: Any, name: str, key: str, value: str) -> None:
    if not isinstance(inner, dict):
        raise InvalidRequestError(f"{name} is given in two ways.", param=name)
    inner[key] = value
