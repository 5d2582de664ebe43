"""Every error that one process can report to another, or to a client.

A class carries what a caller needs to act: a stable `code`, the HTTP status that the web
process answers with, and whether the same call may succeed later. Its docstring is the message
that is shown when none is given. Nothing here knows HTTP frameworks: the web process renders.
"""

from __future__ import annotations

from typing import ClassVar


class HaltlineError(Exception):
    """Something went wrong inside the server."""

    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        self.message = message or default_message(type(self))
        self.param = param
        self.retry_after = retry_after
        self.request_id = request_id
        super().__init__(self.message)


def default_message(error: type[HaltlineError]) -> str:
    """The first paragraph of the class's docstring, on one line."""
    first, _, _ = (error.__doc__ or "").strip().partition("\n\n")
    return " ".join(first.split())


class InvalidRequestError(HaltlineError):
    """The request is not valid."""

    code = "invalid_request"
    type = "invalid_request_error"
    http_status = 400


class AuthenticationError(HaltlineError):
    """A valid API key is needed: send it as 'Authorization: Bearer <key>'."""

    code = "invalid_api_key"
    type = "authentication_error"
    http_status = 401


class PermissionDeniedError(HaltlineError):
    """This key does not have the scope that the call needs."""

    code = "permission_denied"
    type = "permission_error"
    http_status = 403


class NotFoundError(HaltlineError):
    """There is nothing under that name."""

    code = "not_found"
    type = "not_found_error"
    http_status = 404


class ModelNotFoundError(NotFoundError):
    """No replica serves that model."""

    code = "model_not_found"


class ConflictError(HaltlineError):
    """The call conflicts with the present state."""

    code = "conflict"
    type = "conflict_error"
    http_status = 409


class ContextLengthExceededError(InvalidRequestError):
    """The prompt and the tokens asked for do not fit into the model's context."""

    code = "context_length_exceeded"


class OverloadedError(HaltlineError):
    """The server cannot take the request now; try again later."""

    code = "overloaded"
    type = "overloaded_error"
    http_status = 503
    retryable = True


class QueueFullError(OverloadedError):
    """The queue is full; try again later."""

    code = "queue_full"


class QueueDeadlineError(OverloadedError):
    """The request waited in the queue until its deadline and was never started."""

    code = "queue_deadline"


class UnavailableError(OverloadedError):
    """No replica can take work at the moment; try again later."""

    code = "unavailable"


class FencedError(UnavailableError):
    """New work is refused until an operator resumes it; try again later."""

    code = "fenced"


class EngineLostError(UnavailableError):
    """The engine that ran this request is gone; what it had produced is in the record."""

    code = "engine_lost"


class EngineError(HaltlineError):
    """The engine failed while it worked on this request."""

    code = "engine_error"


class WireError(HaltlineError):
    """A message on the bus could not be understood."""

    code = "bad_message"


def by_code(code: str) -> type[HaltlineError]:
    """The class whose `code` this is; `HaltlineError` for one that this version does not know."""
    return _BY_CODE.get(code, HaltlineError)


def _family(root: type[HaltlineError]) -> list[type[HaltlineError]]:
    return [root, *(found for child in root.__subclasses__() for found in _family(child))]


_BY_CODE = {error.code: error for error in _family(HaltlineError)}
