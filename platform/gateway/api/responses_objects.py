"""The Responses API's words for one answer: the `response` object and its one output message.

Ours is one addition: `abort` on a response that was stopped. Knows nothing of transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.outcomes import Outcome
from inference.generation import FinishReason, Usage
from inference.lifecycle import State

Json = dict[str, Any]

_STATUS_OF_END = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.ERROR: "failed",
    FinishReason.EXPIRED: "failed",
}
_WAITING = {State.RECEIVED, State.HELD, State.QUEUED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What of a response is known from its beginning. `created`: seconds since the epoch.

    `fields`: what was asked for, by its API name.
    """

    response_id: str
    created: int
    model: str
    fields: Json

    @property
    def background(self) -> bool:
        return bool(self.fields.get("background"))

    @property
    def item_id(self) -> str:
        return f"msg_{self.response_id.partition('_')[2]}"

    def live(self, status: str) -> Json:
        """One that has not ended."""
        return {**self._head(status), "output": [], "usage": None}

    def ended(self, outcome: Outcome, text: str) -> Json:
        found = {
            **self._head(status_of(outcome)),
            "error": _error(outcome),
            "incomplete_details": _incomplete(outcome),
            "output": self.output(outcome, text),
            "usage": _usage(outcome.usage),
        }
        if outcome.finish_reason is FinishReason.STOP:
            found["completed_at"] = int(outcome.ended_at.timestamp())
        if outcome.abort is not None:
            found["abort"] = {
                "id": outcome.abort.id,
                "cause": outcome.abort.cause,
                "reason": outcome.abort.reason,
            }
        return found

    def output(self, outcome: Outcome, text: str) -> list[Json]:
        """The message; none, if nothing was generated."""
        if not has_output(outcome, text):
            return []
        return [self.item(item_status(outcome), [text_part(text)])]

    def item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _head(self, status: str) -> Json:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "error": None,
            "incomplete_details": None,
            "instructions": self.fields.get("instructions"),
            "max_output_tokens": self.fields.get("max_output_tokens"),
            "metadata": self.fields.get("metadata", {}),
            "model": self.model,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": None,
            "store": self.fields.get("store", True),
            "temperature": self.fields.get("temperature", 1.0),
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": self.fields.get("top_p", 1.0),
            "truncation": "disabled",
            "user": self.fields.get("user"),
        }


def has_output(outcome: Outcome, text: str) -> bool:
    return bool(text or outcome.usage.output_tokens)


def text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item_status(outcome: Outcome) -> str:
    return "completed" if outcome.finish_reason is FinishReason.STOP else "incomplete"


def status_of(outcome: Outcome) -> str:
    return _STATUS_OF_END[outcome.finish_reason]


def status_of_state(state: State) -> str:
    """Of a request that is live; one that is being aborted has not ended yet."""
    return "queued" if state in _WAITING else "in_progress"


def _error(outcome: Outcome) -> Json | None:
    if not outcome.error_code:
        return None
    return {"code": outcome.error_code, "message": outcome.error_message}


def _incomplete(outcome: Outcome) -> Json | None:
    reached = outcome.finish_reason is FinishReason.LENGTH
    return {"reason": "max_output_tokens"} if reached else None


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
