"""JSON bodies, to the letter of RFC 8259: no NaN, no lone surrogates, no NUL, not too large."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import IO, Any

import msgspec
from django.conf import settings
from django.utils.http import parse_header_parameters
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from gateway.api.errors import TooLargeError

_decoder = msgspec.json.Decoder()


class StrictJSONParser(JSONParser):
    """Raises `TooLargeError` beyond DATA_UPLOAD_MAX_MEMORY_SIZE, `ParseError` for bad JSON."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,  # noqa: ARG002 - REST framework's
    ) -> Any:
        _check_charset(media_type or "")
        most: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(most + 1)
        if len(body) > most:
            raise TooLargeError(f"The body must not be longer than {most} bytes.")
        try:
            data = _decoder.decode(body)
            has_nul = b"\\u0000" in body and _holds_nul(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise ParseError(f"The body is not valid JSON: {problem}") from problem
        except RecursionError as problem:
            raise ParseError("The body is nested too deeply.") from problem
        if has_nul:
            raise ParseError("The body must not contain the character U+0000.")
        return data


def _check_charset(media_type: str) -> None:
    """JSON is UTF-8. What says that it is something else would be read wrongly."""
    _, parameters = parse_header_parameters(media_type)
    charset = parameters.get("charset", "utf-8")
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        name = ""
    if name not in {"utf-8", "ascii"}:
        raise ParseError(f"The charset {charset[:40]!r} is not supported: JSON is sent as UTF-8.")


def _holds_nul(data: Any) -> bool:
    """Databases cannot keep it in text."""
    if isinstance(data, str):
        return "\0" in data
    if isinstance(data, dict):
        return any(_holds_nul(name) or _holds_nul(value) for name, value in data.items())
    return isinstance(data, list) and any(map(_holds_nul, data))
