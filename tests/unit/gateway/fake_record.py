"""A record without a database: it remembers what a relay wrote, and answers by the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.record import Record
from inference.errors import EngineLostError
from inference.events import ChoiceEnd
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import State, Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.ends import RequestEnd
from ledger.specs import Placement, Received

LOST = EngineLostError.code
_ENDS = {
    Trigger.FAIL: (State.FAILED, FinishReason.ERROR),
    Trigger.EXPIRE: (State.EXPIRED, FinishReason.EXPIRED),
    Trigger.ABORT_CONFIRM: (State.ABORTED, FinishReason.ABORT),
}


class FakeRecord(Record):
    """`lost`: what was reported of lost engines; `rows`: what has ended, by request id.

    `broken`: raised by every call, `failures` times so far. `looks`: at silent requests.
    """

    def __init__(self) -> None:
        super().__init__("web-1")
        self.lost: list[tuple[str, dict[str, int]]] = []
        self.placed: list[tuple[RequestKey, Placement]] = []
        self.rows: dict[str, RequestEnd] = {}
        self.broken: Exception | None = None
        self.looks = self.failures = 0

    async def requeue(self, *, replica: str, epoch: str, received: Sequence[Received]) -> set[str]:
        self._check()
        tokens = {one.request_id: sum(len(e.token_ids) for e in one.ends) for one in received}
        self.lost.append((epoch, tokens))
        for one in received:
            if one.begun or one.generation > 1:
                lost = ChoiceEnd(index=0, finish_reason=FinishReason.ERROR, error_code=LOST)
                self._write(one.request_id, State.FAILED, one.ends or [lost], error_code=LOST)
        return {one.request_id for one in received} - self.rows.keys()

    async def place(self, keys: Iterable[RequestKey], placement: Placement) -> set[str]:
        self._check()
        mine = [key for key in keys if key.request_id not in self.rows]
        self.placed += [(key, placement) for key in mine]
        return {key.request_id for key in mine}

    async def settle(
        self, keys: Iterable[RequestKey], *, trigger: Trigger, fields: Mapping[str, Any]
    ) -> set[str]:
        self._check()
        state, reason = _ENDS[trigger]
        cause = AbortCause(fields["cause"]) if "cause" in fields else None
        abort = AbortInfo(cause=cause) if cause else None
        end = ChoiceEnd(
            index=0, finish_reason=reason, abort=abort, error_code=fields.get("error_code")
        )
        for key in keys:
            self._write(key.request_id, state, [end], error_code=fields.get("error_code", ""))
        return set(self.rows)

    async def ended(self, request_ids: Sequence[str]) -> list[str]:
        self._check()
        self.looks += 1
        return [one for one in request_ids if one in self.rows]

    async def ends(self, request_ids: Sequence[str]) -> list[RequestEnd]:
        self._check()
        return [self.rows[one] for one in request_ids if one in self.rows]

    def end(self, request_id: str, *ends: ChoiceEnd, state: State = State.ABORTED) -> None:
        """The request ends without a word of its engine."""
        self._write(request_id, state, list(ends))

    def _write(
        self, request_id: str, state: State, ends: list[ChoiceEnd], *, error_code: str = ""
    ) -> None:
        self.rows[request_id] = RequestEnd(
            request_id=request_id,
            state=state,
            prompt_tokens=3,
            cached_prompt_tokens=0,
            error_code=error_code,
            error_message="",
            choices=ends,
            counts=[len(end.token_ids) for end in ends],
        )

    def _check(self) -> None:
        if self.broken is not None:
            self.failures += 1
            raise self.broken
