"""The ids that a client sends and reads in headers, the same on every route that generates."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from inference.errors import HaltlineError
from ledger.ids import client_id_check

CLIENT_ID_HEADER = "X-Request-Id"
INTERNAL_ID_HEADER = "X-Haltline-Request-Id"
PARAMETERS = [
    OpenApiParameter(
        CLIENT_ID_HEADER, str, OpenApiParameter.HEADER, description="The client's own id."
    )
]


def client_id_of(request: Request, fields: dict[str, Any]) -> str:
    """The header before the body; empty for none. Raises `InvalidRequestError`."""
    header = request.headers.get(CLIENT_ID_HEADER)
    if header is not None:
        return client_id_check(header, param=CLIENT_ID_HEADER)
    named = fields.get("request_id")
    return client_id_check(named) if named is not None else ""


def echo_headers(request: HttpRequest) -> dict[str, str]:
    """An id that is fit for one is echoed even if nothing else of the request is."""
    sent = request.headers.get(CLIENT_ID_HEADER, "")
    try:
        return {CLIENT_ID_HEADER: client_id_check(sent)}
    except HaltlineError:
        return {}


def id_headers(request_id: str, *, client_id: str) -> dict[str, str]:
    return {CLIENT_ID_HEADER: client_id or request_id, INTERNAL_ID_HEADER: request_id}
