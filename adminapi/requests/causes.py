"""Why a request may have ended otherwise than as asked, as the record and its filters name it.

An abort has a cause of its own; of what was refused or failed, it is the code of the error.
"""

from __future__ import annotations

from inference import errors
from inference.generation import AbortCause

_ERRORS: tuple[type[errors.HaltlineError], ...] = (
    errors.EngineLostError,
    errors.EngineError,
    errors.QueueFullError,
    errors.QueueDeadlineError,
    errors.FencedError,
    errors.UnavailableError,
    errors.OverloadedError,
    errors.ModelNotFoundError,
    errors.ContextLengthExceededError,
    errors.InvalidRequestError,
    errors.HaltlineError,
)
ERROR_CODES = [error.code for error in _ERRORS]
CAUSES = [*(str(cause) for cause in AbortCause), *ERROR_CODES]
