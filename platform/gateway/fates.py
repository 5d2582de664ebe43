"""What ends a request that waits for an engine, and when: pure rules, for `gateway.requeue`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.mailbox import Mailbox
from inference.errors import EngineLostError, default_message
from inference.generation import AbortCause
from inference.lifecycle import Trigger


@dataclass(frozen=True, slots=True)
class Fate:
    """The step that ends it. `fields`: columns of its row, as pairs."""

    trigger: Trigger
    fields: tuple[tuple[str, str], ...] = ()


LOST = Fate(
    Trigger.FAIL,
    (
        ("error_code", EngineLostError.code),
        ("error_message", default_message(EngineLostError)),
    ),
)
EXPIRED = Fate(Trigger.EXPIRE)


def aborted(cause: AbortCause) -> Fate:
    return Fate(Trigger.ABORT_CONFIRM, (("cause", cause.value),))


def fate_of(mailbox: Mailbox, until: float, now: float) -> Fate | None:
    """None: it may go on waiting. Its client waits until `until`, of the loop's clock."""
    if mailbox.stopping is not None:
        return aborted(mailbox.stopping)
    submission, waited = mailbox.submission, now - mailbox.began_at
    if submission.deadline is not None and waited >= submission.deadline:
        return aborted(AbortCause.DEADLINE)
    if submission.queue_deadline is not None and waited >= submission.queue_deadline:
        return EXPIRED
    return LOST if now >= until else None


def due_at(mailbox: Mailbox, until: float) -> float:
    """When the first of these rules will apply, if nobody stops it before."""
    limits = (mailbox.submission.deadline, mailbox.submission.queue_deadline)
    soonest = min((one for one in limits if one is not None), default=math.inf)
    return min(until, mailbox.began_at + soonest)
