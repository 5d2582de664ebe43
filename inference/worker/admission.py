"""How a Submit becomes sequences in the engine: first its key, then its tokens, or a refusal.

A request is known from the moment of its arrival, before it is tokenized, so that an abort or a
deadline can end it at any time. Only the engine's thread uses this.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from inference.engine.engine import Engine, NewSequence
from inference.errors import (
    HaltlineError,
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
)
from inference.generation import SamplingParams
from inference.wire import Accepted, Submit
from inference.worker.checks import check_submit, num_choices
from inference.worker.commands import Submission, Tokenized, TokenizingFailed
from inference.worker.deadlines import Deadlines
from inference.worker.ending import Finalizer, accept
from inference.worker.outbox import Outbox
from inference.worker.registry import Registry
from inference.worker.request import Choice, Request, Stage

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Admission:
    """`models`: the names under which the model may be asked for."""

    models: frozenset[str]
    engine: Engine
    registry: Registry
    deadlines: Deadlines
    outbox: Outbox
    finalizer: Finalizer
    is_draining: bool = False

    def arrive(self, submission: Submission) -> None:
        """Let it in, end it at once if its abort was here first, or refuse it."""
        submit = submission.submit
        if self.registry.knows(submit.key):
            submission.is_refused = True
            self.registry.counts.duplicates += 1
            logger.warning("request %s came twice", submit.key.request_id)
            if not submit.attached:
                self._accept_again(submission)
            return
        request, impossible = _request(submission)
        submission.request = request
        self.registry.add(request)
        if impossible is not None:
            self.finalizer.reject(request, impossible)
        elif (info := self.registry.early_aborts.pop(submit.key)) is not None:
            self.finalizer.abort([request], info)
        elif (refusal := self._refusal(submit)) is not None:
            self.finalizer.reject(request, refusal)
        else:
            self.deadlines.watch(request)

    def enter(self, tokenized: Tokenized) -> None:
        """Queue its sequences, all or none."""
        request = tokenized.submission.request
        if request is None or request.is_ended:
            return
        request.prompt_ids, request.prompt_texts = tokenized.prompt_ids, tokenized.texts
        self.registry.number(request)
        try:
            self.engine.add(*(_sequence(request, choice) for choice in request.choices))
        except HaltlineError as refusal:
            self.finalizer.reject(request, refusal)
            return
        request.stage = Stage.QUEUED
        accept(request, self.outbox)

    def give_up(self, failed: TokenizingFailed) -> None:
        request = failed.submission.request
        if request is not None and not request.is_ended:
            self.finalizer.reject(request, failed.error)

    def _accept_again(self, submission: Submission) -> None:
        """Whoever hands over work for nobody hangs up, and may not have heard the first answer."""
        key = submission.submit.key
        request = self.registry.live.get(key)
        counts = [len(ids) for ids in request.prompt_ids] if request is not None else []
        answer = Accepted(key=key, epoch=self.outbox.epoch, prompt_tokens=counts)
        self.outbox.send(submission.session, answer)

    def _refusal(self, submit: Submit) -> HaltlineError | None:
        if self.is_draining:
            return UnavailableError("this engine is shutting down", retry_after=1.0)
        if submit.model not in self.models:
            return ModelNotFoundError(f"no replica serves {submit.model!r}", param="model")
        try:
            check_submit(submit)
        except HaltlineError as problem:
            return problem
        return None


def _request(submission: Submission) -> tuple[Request, InvalidRequestError | None]:
    """With its choices; without any, and why, where their number is impossible."""
    count, impossible = 0, None
    try:
        count = num_choices(submission.submit)
    except InvalidRequestError as problem:
        impossible = problem
    request = Request(
        submission.submit,
        submitter=submission.session,
        arrived_at=submission.received_at,
        num_choices=count,
    )
    return request, impossible


def _sequence(request: Request, choice: Choice) -> NewSequence:
    if choice.seq_id is None:
        raise ValueError(f"choice {choice.index} of {request.key} has no sequence")
    return NewSequence(
        seq_id=choice.seq_id,
        prompt_ids=request.prompt_ids[request.prompt_of(choice)],
        params=_params(request.submit, choice),
        priority=request.submit.priority,
    )


def _params(submit: Submit, choice: Choice) -> SamplingParams:
    """Choices of one seeded prompt differ from each other, and not from run to run."""
    number = choice.index % submit.n
    if submit.params.seed is None or number == 0:
        return submit.params
    return msgspec.structs.replace(submit.params, seed=submit.params.seed + number)
