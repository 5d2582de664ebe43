"""How errors leave the server: one JSON shape for every route, and never an inside view.

`{"error": {"message", "type", "param", "code"}}`, with `request_id` where a record holds what
was produced before the failure. Knows the error tree and REST framework's own exceptions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions

from inference.errors import (
    AuthenticationError,
    HaltlineError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_encoder = msgspec.json.Encoder()


class MethodNotAllowedError(InvalidRequestError):
    """This route does not take that method."""

    code = "method_not_allowed"
    http_status = 405


class TooLargeError(InvalidRequestError):
    """The request body is too large."""

    code = "request_too_large"
    http_status = 413


class RateLimitedError(OverloadedError):
    """Too many requests; try again later."""

    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    http_status = 429


def json_response(data: Any, *, status: int = 200) -> HttpResponse:
    """Rendered at once: an async view then needs no thread for it."""
    body = _encoder.encode(data)
    headers = {"Content-Length": str(len(body))}
    return HttpResponse(body, status=status, content_type="application/json", headers=headers)


def error_body(error: HaltlineError) -> dict[str, Any]:
    found: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if error.request_id is not None:
        found["request_id"] = error.request_id
    return {"error": found}


def error_response(error: HaltlineError) -> HttpResponse:
    response = json_response(error_body(error), status=error.http_status)
    if error.retry_after is not None or error.http_status in {429, 503}:
        response["Retry-After"] = str(max(1, math.ceil(error.retry_after or 1.0)))
    if error.http_status == AuthenticationError.http_status:
        response["WWW-Authenticate"] = 'Bearer realm="haltline"'
    return response


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse:
    """REST framework's hook: every exception of a view becomes an answer in the one shape."""
    error = as_haltline_error(exc)
    view = context.get("view")
    if type(error) is HaltlineError:
        logger.error("%s failed", type(view).__name__, exc_info=exc)
    response = error_response(error)
    if isinstance(exc, exceptions.MethodNotAllowed) and view is not None:
        response["Allow"] = ", ".join(view.allowed_methods)
    return response


def as_haltline_error(exc: Exception) -> HaltlineError:
    """The error that a client may see. What we did not foresee says nothing of the inside."""
    if isinstance(exc, HaltlineError):
        return exc
    if isinstance(exc, exceptions.ValidationError):
        param, message = next(_flattened(exc.detail, ()), (None, "The request is not valid."))
        return InvalidRequestError(message, param=param)
    if isinstance(exc, exceptions.Throttled):
        return RateLimitedError(retry_after=getattr(exc, "wait", None))
    if isinstance(exc, OperationalError):
        logger.error("the database does not answer", exc_info=exc)
        return UnavailableError("The database does not answer; try again later.")
    return _by_kind(exc)


def _by_kind(exc: Exception) -> HaltlineError:
    for kinds, error in _KINDS:
        if isinstance(exc, kinds):
            detail = getattr(exc, "detail", None)
            return error(str(detail) if detail is not None and error in _KEEP_MESSAGE else None)
    return HaltlineError()


_KINDS: list[tuple[tuple[type[Exception], ...], type[HaltlineError]]] = [
    ((exceptions.NotAuthenticated, exceptions.AuthenticationFailed), AuthenticationError),
    ((exceptions.PermissionDenied, PermissionDenied), PermissionDeniedError),
    ((exceptions.NotFound, Http404), NotFoundError),
    ((exceptions.MethodNotAllowed,), MethodNotAllowedError),
    ((RequestDataTooBig,), TooLargeError),
    (
        (exceptions.ParseError, exceptions.UnsupportedMediaType, exceptions.NotAcceptable),
        InvalidRequestError,
    ),
]
_KEEP_MESSAGE = {InvalidRequestError, MethodNotAllowedError}


def _flattened(detail: Any, path: tuple[str, ...]) -> Iterator[tuple[str | None, str]]:
    """Pairs of a dotted path and a message, from REST framework's nested detail."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            whole = name == "non_field_errors"
            yield from _flattened(inner, path if whole else (*path, str(name)))
    elif isinstance(detail, list):
        for position, inner in enumerate(detail):
            nested = isinstance(inner, dict | list)
            yield from _flattened(inner, (*path, str(position)) if nested else path)
    else:
        yield ".".join(path) or None, str(detail)


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    """Django's hook, for what never reached a view."""
    if isinstance(exception, RequestDataTooBig):
        return error_response(TooLargeError())
    return error_response(InvalidRequestError())


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    return error_response(PermissionDeniedError())


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    return error_response(NotFoundError(f"There is no route {request.path!r}."))


def handler500(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    return error_response(HaltlineError())
