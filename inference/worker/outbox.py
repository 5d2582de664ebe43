"""What one turn of the engine's loop has to say, collected and handed over at once.

Messages for a connection keep their order; the outputs of one step for one connection become one
message. Requests whose timeline grew become one event each, however much happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from inference.events import RequestEvent
from inference.wire import AnyMessage, ChoiceOutput, Outputs
from inference.worker.request import Request
from inference.worker.session import Session

Delivery: TypeAlias = tuple[Session, AnyMessage]
MAX_ITEMS = 2_000


class Outbox:
    """`deliver` and `record` must not wait: they are called on the engine's thread."""

    def __init__(
        self,
        *,
        epoch: str,
        replica: str,
        deliver: Callable[[list[Delivery]], None],
        record: Callable[[list[RequestEvent]], None],
    ) -> None:
        self.epoch, self._replica = epoch, replica
        self._deliver, self._record = deliver, record
        self._mail: list[Delivery] = []
        self._outputs: dict[Session, list[ChoiceOutput]] = {}
        self._changed: dict[int, Request] = {}
        self.step = 0

    def send(self, session: Session, message: AnyMessage) -> None:
        self._close_outputs(session)
        if session.is_open:
            self._mail.append((session, message))

    def output(self, sessions: Iterable[Session], item: ChoiceOutput) -> None:
        for session in sessions:
            items = self._outputs.setdefault(session, [])
            items.append(item)
            if len(items) >= MAX_ITEMS:
                self._close_outputs(session)

    def changed(self, request: Request) -> None:
        """Its timeline has grown."""
        self._changed[id(request)] = request

    def flush(self) -> None:
        for session in list(self._outputs):
            self._close_outputs(session)
        if self._changed:  # first: who is told of an end may ask the ledger about it
            self._record([self._event(request) for request in self._changed.values()])
            self._changed = {}
        if self._mail:
            self._deliver(self._mail)
            self._mail = []

    def _close_outputs(self, session: Session) -> None:
        items = self._outputs.pop(session, None)
        if items and session.is_open:
            message = Outputs(epoch=self.epoch, step=self.step, items=items)
            self._mail.append((session, message))

    def _event(self, request: Request) -> RequestEvent:
        return RequestEvent(
            key=request.key,
            replica=self._replica,
            epoch=self.epoch,
            timeline=list(request.timeline),
            prompt_tokens=sum(map(len, request.prompt_ids)),
            cached_prompt_tokens=request.cached_prompt_tokens,
            output_tokens=request.output_tokens,
            preemptions=request.preemptions,
            busy_seconds=request.busy_seconds,
            wasted_seconds=request.wasted_seconds,
        )
