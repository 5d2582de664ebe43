"""Rows as the JSON that REST, websockets and the console show.

Plain functions, with no queries of their own beyond the relations that the caller has fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from inference.errors import QueueDeadlineError
from inference.lifecycle import State
from ledger.ids import response_id
from ledger.models import Abort, AbortTarget, Choice, InferenceRequest, Replica, Transition

Json = dict[str, Any]


def time_json(at: datetime | None) -> str | None:
    """ISO 8601 in UTC, with microseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def request_json(request: InferenceRequest) -> Json:
    """The record without its content: what lists and pushes carry. Wants `owner` fetched."""
    return {
        "id": request.id,
        "object": "request",
        "response_id": response_id(request.id, request.kind),
        "client_request_id": request.client_id or None,
        "kind": request.kind,
        "state": request.state,
        "model": request.model,
        "owner": request.owner.name,
        "submitted_by": request.submitted_by,
        "metadata": request.metadata,
        "stream": request.stream,
        "priority": request.priority,
        "n": request.n,
        "choice_count": request.choice_count,
        "generation": request.generation,
        "replica": request.replica or None,
        **_end_json(request),
        **_times_json(request),
        **_counts_json(request),
    }


def request_detail_json(
    request: InferenceRequest, choices: Iterable[Choice], *, content: bool = True
) -> Json:
    """The whole record. `content` False leaves out prompt, text, tokens and logprobs."""
    detail: Json = {
        **request_json(request),
        "params": request.params,
        "choices": [choice_json(choice, content=content) for choice in choices],
    }
    return {**detail, "prompt": request.prompt} if content else detail


def choice_json(choice: Choice, *, content: bool = True) -> Json:
    shown: Json = {
        "index": choice.index,
        "finish_reason": choice.finish_reason or None,
        "stop_reason": choice.stop_reason,
        "output_token_count": choice.output_token_count,
        "finished_at": time_json(choice.finished_at),
        "abort": _abort_info_json(choice),
        "error": _error_json(choice.error_code, choice.error_message),
    }
    if content:
        shown |= {
            "text": choice.text,
            "token_ids": choice.token_ids,
            "logprobs": choice.logprobs,
        }
    return shown


def request_event_json(transition: Transition) -> Json:
    return {
        "seq": transition.seq,
        "choice_index": transition.choice_index,
        "from_state": transition.from_state or None,
        "to_state": transition.to_state,
        "trigger": transition.trigger,
        "actor": transition.actor,
        "at": time_json(transition.at),
        "recorded_at": time_json(transition.recorded_at),
        "detail": transition.detail,
    }


def abort_json(
    abort: Abort,
    *,
    counts: dict[str, int],
    targets: Sequence[AbortTarget],
    choices: dict[str, list[Choice]],
    targets_next: str | None = None,
) -> Json:
    """A receipt. `choices` by request id, for the counts of each target; see `ledger.selectors`."""
    shown: Json = {
        "id": abort.id,
        "object": "abort",
        "status": abort.state,
        "created_at": time_json(abort.created_at),
        "done_at": time_json(abort.done_at),
        "requested_by": abort.requested_by,
        "cause": abort.cause,
        "reason": abort.reason or None,
        "selector": abort.selector,
        "counts": counts,
        "targets": [target_json(one, choices.get(one.request_id or "", [])) for one in targets],
        "result": _result_json(targets),
    }
    return {**shown, "targets_next": targets_next} if targets_next else shown


def target_json(target: AbortTarget, choices: Sequence[Choice]) -> Json:
    settled = target.output_token_count is not None
    shown: Json = {
        "requested_id": target.requested_id,
        "request_id": target.request_id,
        "outcome": target.outcome,
        "state_before": target.state_before or None,
        "output_token_count": target.output_token_count,
        "released_at": time_json(target.released_at),
        "confirmed_at": time_json(target.confirmed_at),
        "choices": [
            {"index": one.index, "output_token_count": one.output_token_count}
            for one in (choices if settled else ())
        ],
    }
    return {**shown, "detail": target.detail} if target.detail else shown


def replica_json(replica: Replica) -> Json:
    return {
        "id": replica.id,
        "object": "replica",
        "state": replica.state,
        "model": replica.model,
        "epoch": replica.epoch,
        "last_beat_at": time_json(replica.last_beat_at),
        "load": replica.load,
    }


def _result_json(targets: Sequence[AbortTarget]) -> Json:
    return {
        "aborted": [
            {"request_id": one.request_id, "output_token_count": one.output_token_count}
            for one in targets
            if one.outcome == AbortTarget.Outcome.ABORTED
        ],
        "not_found": [
            one.requested_id for one in targets if one.outcome == AbortTarget.Outcome.NOT_FOUND
        ],
    }


def _end_json(request: InferenceRequest) -> Json:
    return {
        "cause": request_cause(request) or None,
        "aborted_by": request.aborted_by or None,
        "reason": request.reason or None,
        "abort_id": request.abort_id or None,
        "error": _error_json(request.error_code, request.error_message),
    }


def request_cause(request: InferenceRequest) -> str:
    """Why it ended otherwise than as asked: the abort's cause, or the code of what failed."""
    late = QueueDeadlineError.code if request.state == State.EXPIRED else ""
    return request.cause or request.error_code or late


def _times_json(request: InferenceRequest) -> Json:
    return {
        "received_at": time_json(request.received_at),
        "held_at": time_json(request.held_at),
        "queued_at": time_json(request.queued_at),
        "first_scheduled_at": time_json(request.first_scheduled_at),
        "first_token_at": time_json(request.first_token_at),
        "finished_at": time_json(request.finished_at),
        "deadline_at": time_json(request.deadline_at),
        "queue_deadline_at": time_json(request.queue_deadline_at),
    }


def _counts_json(request: InferenceRequest) -> Json:
    return {
        "prompt_token_count": request.prompt_token_count,
        "cached_prompt_token_count": request.cached_prompt_token_count,
        "output_token_count": request.output_token_count,
        "preemption_count": request.preemption_count,
        "busy_seconds": request.busy_seconds,
        "wasted_seconds": request.wasted_seconds,
    }


def _error_json(code: str, message: str) -> Json | None:
    return {"code": code, "message": message} if code else None


def _abort_info_json(choice: Choice) -> Json | None:
    if not choice.cause:
        return None
    return {"id": choice.abort_id or None, "cause": choice.cause, "reason": choice.reason or None}
