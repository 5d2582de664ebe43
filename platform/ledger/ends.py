"""How requests have ended, for the web processes whose clients wait for that.

Reads without a caller: whoever asks holds these clients' connections. Knows neither relays nor
HTTP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from inference.events import ChoiceEnd
from inference.generation import AbortCause, FinishReason, TokenLogprobs
from inference.lifecycle import State
from inference.wire import AbortInfo
from ledger.models import LIVE_STATES, Choice, InferenceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """A request that has ended. `error_code` is empty where there was no error.

    `counts`: output tokens of each of the `choices`, also where their content is not kept.
    """

    request_id: str
    state: State
    prompt_tokens: int
    cached_prompt_tokens: int
    error_code: str
    error_message: str
    choices: list[ChoiceEnd]
    counts: list[int]


def requests_ended(*, request_ids: Iterable[str]) -> list[str]:
    """Which of these have ended. One query: give at most some thousand."""
    ended = InferenceRequest.objects.filter(pk__in=list(request_ids)).exclude(state__in=LIVE_STATES)
    return list(ended.order_by().values_list("pk", flat=True))


def request_ends(*, request_ids: Iterable[str]) -> list[RequestEnd]:
    """How each of these ended; those that have not are left out."""
    rows = InferenceRequest.objects.filter(pk__in=list(request_ids)).exclude(state__in=LIVE_STATES)
    ended = list(rows.defer("prompt", "params"))
    choices: dict[str, list[Choice]] = defaultdict(list)
    for choice in Choice.objects.filter(request__in=ended).order_by("request", "index"):
        choices[choice.request_id].append(choice)
    return [_end(row, choices[row.pk]) for row in ended]


def _end(row: InferenceRequest, choices: list[Choice]) -> RequestEnd:
    ended = [choice for choice in choices if choice.finish_reason]
    return RequestEnd(
        request_id=row.pk,
        state=State(row.state),
        prompt_tokens=row.prompt_token_count,
        cached_prompt_tokens=row.cached_prompt_token_count,
        error_code=row.error_code,
        error_message=row.error_message,
        choices=[_choice_end(choice) for choice in ended],
        counts=[choice.output_token_count for choice in ended],
    )


def _choice_end(choice: Choice) -> ChoiceEnd:
    return ChoiceEnd(
        index=choice.index,
        finish_reason=FinishReason(choice.finish_reason),
        token_ids=choice.token_ids,
        text=choice.text,
        logprobs=_logprobs(choice),
        stop_reason=choice.stop_reason,
        abort=_abort(choice),
        error_code=choice.error_code or None,
        error_message=choice.error_message or None,
    )


def _logprobs(choice: Choice) -> list[TokenLogprobs] | None:
    if choice.logprobs is None:
        return None
    return msgspec.convert(choice.logprobs, list[TokenLogprobs])


def _abort(choice: Choice) -> AbortInfo | None:
    if choice.finish_reason != FinishReason.ABORT or not choice.cause:
        return None
    return AbortInfo(
        id=choice.abort_id or None, cause=AbortCause(choice.cause), reason=choice.reason or None
    )
