"""What the page of one request shows: every value as plain text, escaped by the template.

Reads rows; knows neither permissions nor HTTP.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from adminapi.console.base import age, link, words
from adminapi.console.timeline import bars, duration, phases
from adminapi.console.tones import CAUSE_TONES, FINISH_TONES, OUTCOME_TONES, STATE_TONES
from ledger.models import AbortTarget, Choice, InferenceRequest, Transition

# A page that is longer is of no use to a reader; the API gives everything.
MOST_CHOICES = 50
MOST_TRANSITIONS = 500
MOST_RECEIPTS = 50
LONGEST_TEXT = 100_000


def request_page(row: InferenceRequest) -> dict[str, Any]:
    transitions = list(row.transitions.order_by("seq")[:MOST_TRANSITIONS])
    return {
        "state": words(row.state),
        "state_tone": STATE_TONES[row.state],
        "is_terminal": not row.is_live,
        "end_note": end_note(row),
        "facts": _facts(row),
        "choices": [_choice(choice) for choice in row.choices.order_by("index")[:MOST_CHOICES]],
        "receipts": _receipts(row),
        "transitions": [_transition(transition) for transition in transitions],
        "prompt": _pretty(row.prompt) if _keeps_content() else "Content is not kept.",
        "params": _pretty(row.params),
        "metadata": _pretty(row.metadata) if row.metadata else "",
        **_timeline(row, transitions),
    }


def _timeline(row: InferenceRequest, transitions: list[Transition]) -> dict[str, Any]:
    now = row.finished_at or timezone.now()
    drawn = bars(phases(transitions, first_token_at=row.first_token_at, now=now))
    told = ", ".join(f"{bar.phase.name} {bar.duration_text}" for bar in drawn)
    return {
        "bars": drawn,
        "total_text": age(row.received_at, now),
        "timeline_text": f"{told or 'nothing recorded'}; now {words(row.state)}",
    }


def end_note(row: InferenceRequest) -> str:
    """Why it ended, or is ending, in one sentence; empty where there is nothing to say."""
    parts = []
    if row.cause:
        by = f" by {row.aborted_by}" if row.aborted_by else ""
        parts.append(f"Stopped{by}, cause: {words(row.cause)}.")
    if row.reason:
        parts.append(f"Reason: {row.reason}")
    if row.error_code or row.error_message:
        parts.append(f"{row.error_code}: {row.error_message}".strip(": "))
    return " ".join(parts)


def _facts(row: InferenceRequest) -> list[tuple[str, Any]]:
    return [*_identity(row), *_counts(row), *_milestones(row)]


def _identity(row: InferenceRequest) -> list[tuple[str, Any]]:
    return [
        ("Owner", row.owner.name),
        ("Submitted by", row.submitted_by),
        ("Client's id", row.client_id or "-"),
        ("Kind", f"{row.kind}, {'streamed' if row.stream else 'not streamed'}"),
        ("Model", row.model),
        ("Replica", row.replica or "-"),
        ("Priority", row.priority),
        ("Choices", row.choice_count),
        ("Generation", row.generation),
    ]


def _counts(row: InferenceRequest) -> list[tuple[str, Any]]:
    return [
        ("Prompt tokens", f"{row.prompt_token_count} ({row.cached_prompt_token_count} cached)"),
        ("Output tokens", row.output_token_count),
        ("Preemptions", row.preemption_count),
        ("Compute", duration(row.busy_seconds)),
        ("Compute after the abort", duration(row.wasted_seconds)),
    ]


def _milestones(row: InferenceRequest) -> list[tuple[str, Any]]:
    return [
        ("Received", moment(row.received_at)),
        ("Queued", moment(row.queued_at)),
        ("First scheduled", moment(row.first_scheduled_at)),
        ("First token", moment(row.first_token_at)),
        ("Finished", moment(row.finished_at)),
    ]


def moment(at: datetime | None) -> str:
    """UTC, to the millisecond."""
    if at is None:
        return "-"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "ended": words(choice.finish_reason) or "live",
        "tone": FINISH_TONES.get(choice.finish_reason, "info"),
        "output_token_count": choice.output_token_count,
        "text": _cut(choice.text) if _keeps_content() else "",
    }


def _transition(row: Transition) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "at": moment(row.at),
        "from_state": words(row.from_state) or "-",
        "to_state": words(row.to_state),
        "tone": STATE_TONES[row.to_state],
        "trigger": words(row.trigger),
        "actor": row.actor,
        "choice": "-" if row.choice_index is None else row.choice_index,
        "detail": json.dumps(row.detail, ensure_ascii=False) if row.detail else "",
    }


def _receipts(row: InferenceRequest) -> list[dict[str, Any]]:
    targets = AbortTarget.objects.filter(request=row).select_related("abort")
    return [
        {
            "link": link(target.abort),
            "outcome": words(target.outcome),
            "tone": OUTCOME_TONES.get(target.outcome, "default"),
            "requested_by": target.abort.requested_by,
            "cause": words(target.abort.cause),
            "cause_tone": CAUSE_TONES.get(target.abort.cause, "default"),
            "reason": target.abort.reason or "-",
            "created_at": moment(target.abort.created_at),
        }
        for target in targets.order_by("-abort__created_at")[:MOST_RECEIPTS]
    ]


def _keeps_content() -> bool:
    return settings.HALTLINE_RETENTION_DAYS > 0


def _pretty(value: Any) -> str:
    """A lone string as it is, anything else as indented JSON."""
    lone = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = lone if isinstance(lone, str) else json.dumps(lone, ensure_ascii=False, indent=2)
    return _cut(text)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… {len(text) - LONGEST_TEXT} more characters"
