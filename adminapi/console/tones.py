"""The colour of every word that the console shows as a label, derived from the state machine.

A tone is one of the label variants of the theme; "default" is grey.
"""

from __future__ import annotations

from inference.generation import AbortCause, FinishReason
from inference.lifecycle import DISPATCHED, TERMINAL, UNDISPATCHED, State

STATE_TONES: dict[str, str] = {
    **dict.fromkeys(UNDISPATCHED, "default"),
    **dict.fromkeys(DISPATCHED, "info"),
    **dict.fromkeys(TERMINAL, "danger"),
    State.QUEUED: "primary",
    State.ABORTING: "warning",
    State.FINISHED: "success",
    State.ABORTED: "warning",
    State.EXPIRED: "warning",
}
FINISH_TONES: dict[str, str] = {
    FinishReason.STOP: "success",
    FinishReason.LENGTH: "success",
    FinishReason.ABORT: STATE_TONES[State.ABORTED],
    FinishReason.ERROR: STATE_TONES[State.FAILED],
    FinishReason.EXPIRED: STATE_TONES[State.EXPIRED],
}
ABORT_TONES: dict[str, str] = {
    "accepted": "primary",
    "in_progress": "info",
    "done": "success",
}
OUTCOME_TONES: dict[str, str] = {
    "pending": "info",
    "aborted": "success",
    "already_finished": "default",
    "not_found": "warning",
    "engine_lost": "danger",
    "unconfirmed": "danger",
}
CAUSE_TONES: dict[str, str] = {
    **dict.fromkeys(AbortCause, "default"),
    AbortCause.API: "primary",
    AbortCause.OPERATOR: "warning",
}
REPLICA_TONES: dict[str, str] = {
    "running": "success",
    "lost": "danger",
}
