"""How one generated answer ended, whoever tells it: the engine's last output, or the record.

Both say the same in their own words; this is the common one. Knows nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from inference.errors import HaltlineError, QueueDeadlineError, default_message
from inference.generation import AbortCause, FinishReason, Usage
from inference.wire import AbortInfo, ChoiceOutput
from ledger.models import Choice, InferenceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`error_code` and `error_message` are set where it failed or expired, `abort` if aborted."""

    finish_reason: FinishReason
    usage: Usage
    ended_at: datetime
    abort: AbortInfo | None = None
    error_code: str = ""
    error_message: str = ""


def outcome_of_output(last: ChoiceOutput, usage: Usage) -> Outcome:
    """`usage`: what this process has counted, where the engine does not say."""
    if last.finish_reason is None:
        raise ValueError("this output is not the last")
    code, message = _error(last.finish_reason, last.error_code, last.error_message)
    return Outcome(
        finish_reason=last.finish_reason,
        usage=last.usage or usage,
        ended_at=datetime.now(UTC),
        abort=last.abort,
        error_code=code,
        error_message=message,
    )


def outcome_of_error(error: HaltlineError, usage: Usage) -> Outcome:
    """Nobody told the end: this is why."""
    return Outcome(
        finish_reason=FinishReason.ERROR,
        usage=usage,
        ended_at=datetime.now(UTC),
        error_code=error.code,
        error_message=error.message,
    )


def outcome_of_record(row: InferenceRequest, choice: Choice) -> Outcome:
    """Of a request that has ended."""
    reason = FinishReason(choice.finish_reason)
    code, message = _error(reason, choice.error_code, choice.error_message)
    return Outcome(
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=row.prompt_token_count,
            output_tokens=choice.output_token_count,
            cached_prompt_tokens=row.cached_prompt_token_count,
        ),
        ended_at=row.finished_at or row.changed_at,
        abort=_abort(choice),
        error_code=code,
        error_message=message,
    )


def _abort(choice: Choice) -> AbortInfo | None:
    if not choice.cause:
        return None
    return AbortInfo(
        id=choice.abort_id or None,
        cause=AbortCause(choice.cause),
        reason=choice.reason or None,
    )


def _error(reason: FinishReason, code: str | None, message: str | None) -> tuple[str, str]:
    """A request that expired tells no code of its own."""
    if reason is FinishReason.EXPIRED:
        return QueueDeadlineError.code, message or default_message(QueueDeadlineError)
    if reason is not FinishReason.ERROR:
        return "", ""
    return code or HaltlineError.code, message or default_message(HaltlineError)
