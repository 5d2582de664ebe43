"""What each command means: the engine's thread brings them here, one after the other.

Every command is handled at once and without a forward pass. What it has to say goes into the
outbox, which the loop empties before the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.errors import EngineError, HaltlineError, NotFoundError
from inference.events import Progress, ReplicaBeat
from inference.generation import AbortCause
from inference.wire import Aborted, AbortInfo, Rejected, Release, ReleaseOutcome, RequestKey
from inference.worker.admission import Admission
from inference.worker.commands import (
    AbortAsked,
    Arrive,
    AttachAsked,
    BeatDue,
    Command,
    DrainAsked,
    SessionEnded,
    StatusAsked,
    Tokenized,
    TokenizingFailed,
)
from inference.worker.deadlines import DeadlineKind, Deadlines
from inference.worker.ending import Finalizer
from inference.worker.health import Gauge
from inference.worker.outbox import Outbox
from inference.worker.registry import Registry
from inference.worker.request import Request
from inference.worker.steps import StepReport
from inference.worker.telling import replay

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Desk:
    """`beat` must not wait. `force_at`: when draining gives up waiting; None: not draining."""

    registry: Registry
    outbox: Outbox
    finalizer: Finalizer
    admission: Admission
    deadlines: Deadlines
    steps: StepReport
    gauge: Gauge
    beat: Callable[[ReplicaBeat], None]
    clock: Callable[[], float]
    force_at: float | None = field(default=None)

    def handle(self, command: Command) -> None:
        """Survives whatever a command holds."""
        try:
            self._handle(command)
        except Exception:  # one message's fault must not end everybody's work
            self.registry.counts.failed_commands += 1
            logger.exception("a command could not be handled: %s", type(command).__name__)
            self._refuse(command)

    def passed(self, seconds: float, *, started_at: float) -> None:
        """A forward pass is over: count it, and charge it to those who were in it."""
        self.gauge.steps += 1
        self.gauge.last_step_seconds = self.clock() - started_at
        self.outbox.step = self.gauge.steps
        self.steps.charge(seconds, started_at=started_at)

    def expire(self) -> None:
        """End what has run out of time."""
        for deadline in self.deadlines.due(self.clock()):
            if deadline.kind is DeadlineKind.QUEUE:
                self.finalizer.expire(deadline.request)
            else:
                info = AbortInfo(cause=AbortCause.DEADLINE)
                self.finalizer.abort([deadline.request], info)

    def _handle(self, command: Command) -> None:  # noqa: C901 - one case per command
        match command:
            case Arrive(submission):
                self.admission.arrive(submission)
            case Tokenized():
                self.admission.enter(command)
            case TokenizingFailed():
                self.admission.give_up(command)
            case AbortAsked():
                self._abort(command)
            case AttachAsked():
                self._attach(command)
            case StatusAsked(session, call):
                self.outbox.send(session, self.gauge.status(call=call))
            case SessionEnded(session):
                self._leave(command)
            case BeatDue():
                self._beat()
            case DrainAsked(grace):
                self._drain(grace)

    def _abort(self, command: AbortAsked) -> None:
        """All that are live are released together, then everybody is told."""
        keys = list(dict.fromkeys(command.keys))
        live = [self.registry.live[key] for key in keys if key in self.registry.live]
        for request in live:
            self.steps.charge_waste(request, since=command.received_at)
        found = {request.key for request in live}
        self.finalizer.abort(live, command.info)
        releases = [Release(key, self._outcome(key, found, command.info)) for key in keys]
        self.outbox.send(command.session, Aborted(epoch=self.outbox.epoch, releases=releases))
        logger.info("abort (%s): %d asked, %d released", command.info.cause, len(keys), len(live))

    def _outcome(self, key: RequestKey, found: set[RequestKey], info: AbortInfo) -> ReleaseOutcome:
        if key in found:
            return ReleaseOutcome.RELEASED
        if self.registry.knows(key):
            return ReleaseOutcome.ENDED
        self.registry.early_aborts.put(key, info)
        return ReleaseOutcome.UNKNOWN

    def _attach(self, command: AttachAsked) -> None:
        request = self.registry.to_replay(command.key)
        if request is None:
            self.outbox.send(command.session, _unknown(command.key, self.outbox.epoch))
            return
        for choice in request.choices:
            item = replay(request, choice, from_token=max(command.from_token, 0))
            if item is not None:
                self.outbox.output([command.session], item)
        if not request.is_ended:
            request.followers.add(command.session)
            self.registry.hold(command.session, request)

    def _leave(self, command: SessionEnded) -> None:
        """The end of a connection aborts what is attached to it, and only that."""
        held = self.registry.held_by(command.session)
        attached = [request for request in held if request.session is command.session]
        for request in held:
            request.followers.discard(command.session)
        self.finalizer.abort(attached, AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED))
        self.registry.forget_session(command.session)

    def _beat(self) -> None:
        running = {request.key: request for request, _ in self.registry.running.values()}
        progress = [Progress(key, request.output_tokens) for key, request in running.items()]
        self.beat(self.gauge.beat(progress))

    def _drain(self, grace: float) -> None:
        """A second call may only shorten the grace."""
        self.admission.is_draining = True
        force_at = self.clock() + grace
        self.force_at = force_at if self.force_at is None else min(self.force_at, force_at)

    def _refuse(self, command: Command) -> None:
        """Whoever submitted must not wait for an answer that does not come."""
        if isinstance(command, Arrive | Tokenized | TokenizingFailed):
            request = command.submission.request
            if request is not None and not request.is_ended:
                self._reject(request, EngineError())

    def _reject(self, request: Request, error: HaltlineError) -> None:
        self.finalizer.reject(request, error)


def _unknown(key: RequestKey, epoch: str) -> Rejected:
    error = NotFoundError("this engine has no such request")
    return Rejected(key=key, epoch=epoch, code=error.code, message=error.message)
