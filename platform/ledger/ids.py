"""Identifiers: how ours are made, which words a client may use for its own, what resolves to what.

`req_` + UUIDv7 hex names a request; its response ids carry the same hex. It knows no rows.
"""

from __future__ import annotations

import re

import uuid_utils

from inference.errors import InvalidRequestError

REQUEST_PREFIX = "req_"
ABORT_PREFIX = "abt_"
RESPONSE_PREFIXES = {"completion": "cmpl-", "chat": "chatcmpl-", "response": "resp_"}
RESERVED_PREFIXES = (REQUEST_PREFIX, ABORT_PREFIX, *RESPONSE_PREFIXES.values())

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_OURS = re.compile(r"(?:req_|cmpl-|chatcmpl-|resp_)([0-9a-f]{32})")


def request_id_new() -> str:
    return REQUEST_PREFIX + uuid_utils.uuid7().hex


def abort_id_new() -> str:
    return ABORT_PREFIX + uuid_utils.uuid7().hex


def response_id(request_id: str, kind: str) -> str:
    """The id that a client of `kind` (completion, chat, response) reads in its answer."""
    return RESPONSE_PREFIXES[kind] + request_id.removeprefix(REQUEST_PREFIX)


def internal_id(any_id: str) -> str | None:
    """The internal id that an internal or a response id stands for; None for other words."""
    match = _OURS.fullmatch(any_id)
    return REQUEST_PREFIX + match[1] if match else None


def is_reserved(any_id: str) -> bool:
    return any_id.startswith(RESERVED_PREFIXES)


def client_id_fits(client_id: str) -> bool:
    """Whether a client may give this id to a request."""
    return _CLIENT_ID.fullmatch(client_id) is not None and not is_reserved(client_id)


def client_id_check(client_id: str, *, param: str = "request_id") -> str:
    """The id itself. Raises `InvalidRequestError` if a client may not use it."""
    if not _CLIENT_ID.fullmatch(client_id):
        raise InvalidRequestError(
            "a request id has 1 to 128 of the characters A-Z a-z 0-9 . _ : -", param=param
        )
    if is_reserved(client_id):
        raise InvalidRequestError("a request id may not begin with a reserved prefix", param=param)
    return client_id
