"""A response as the numbered events of the Responses API, whoever tells it and however often.

`sequence_number` follows from what was generated, not from how it arrived: each event before the
text has a fixed number, a piece of text the number of characters up to its end, what comes after
follows on. So every process gives the same event the same number, and a client that comes back
with the last number that it saw misses nothing and gets nothing twice. Knows no transport.
"""

from __future__ import annotations

from typing import Any

from gateway.api.responses_objects import (
    Frame,
    has_output,
    item_status,
    status_of,
    text_part,
)
from gateway.outcomes import Outcome

Event = dict[str, Any]

# The typed clients know no event of their own for a cancelled response: its `status` tells.
_LAST_EVENT = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class Script:
    """One telling of a response. `after`: the last number that the client has; -1 for none."""

    def __init__(self, frame: Frame, *, after: int = -1) -> None:
        self._frame, self._after = frame, after
        self._first = 1 if frame.background else 0  # a queued response has an event more
        self._texts: list[str] = []
        self._length = 0
        self._is_open = self._is_running = False

    @property
    def length(self) -> int:
        """Characters told so far."""
        return self._length

    def opening(self) -> list[Event]:
        """Before anything is known to run."""
        status = "queued" if self._frame.background else "in_progress"
        events = [self._lifecycle(0, "response.created", status)]
        if self._frame.background:
            events.append(self._lifecycle(1, "response.queued", status))
        return self._new(events)

    def running(self) -> list[Event]:
        """Once, when it is known to run; `output` says so itself."""
        if self._is_running:
            return []
        self._is_running = True
        return self._new([self._lifecycle(1 + self._first, "response.in_progress", "in_progress")])

    def output(self, text: str) -> list[Event]:
        """Something was generated, with more text or still without."""
        events = self.running() + self._opened()
        begin, self._length = self._length, self._length + len(text)
        self._texts.append(text)
        unseen = text[max(0, self._after - self._base - begin) :]
        if not unseen:
            return events
        delta = self._part("response.output_text.delta", delta=unseen, logprobs=[])
        return events + self._new([self._numbered(self._base + self._length, delta)])

    def ending(self, outcome: Outcome) -> list[Event]:
        text = "".join(self._texts)
        events: list[Event] = []
        if has_output(outcome, text):
            events = self.output("") + self._closed(outcome, text)
        kind = _LAST_EVENT[status_of(outcome)]
        last = {"type": kind, "response": self._frame.ended(outcome, text)}
        return events + self._new([self._numbered(self._base + self._length + 4, last)])

    @property
    def _base(self) -> int:
        """The number of the last event before any text."""
        return self._first + 3

    def _opened(self) -> list[Event]:
        if self._is_open:
            return []
        self._is_open = True
        item = {"output_index": 0, "item": self._frame.item("in_progress", [])}
        added = {"type": "response.output_item.added", **item}
        part = self._part("response.content_part.added", part=text_part(""))
        return self._new(
            [self._numbered(self._first + 2, added), self._numbered(self._first + 3, part)]
        )

    def _closed(self, outcome: Outcome, text: str) -> list[Event]:
        last = self._base + self._length
        item = self._frame.item(item_status(outcome), [text_part(text)])
        done = {"type": "response.output_item.done", "output_index": 0, "item": item}
        events = [
            self._part("response.output_text.done", text=text, logprobs=[]),
            self._part("response.content_part.done", part=text_part(text)),
            done,
        ]
        return self._new(
            [self._numbered(last + step, event) for step, event in enumerate(events, start=1)]
        )

    def _lifecycle(self, number: int, kind: str, status: str) -> Event:
        return self._numbered(number, {"type": kind, "response": self._frame.live(status)})

    def _part(self, kind: str, **rest: Any) -> Event:
        where = {"item_id": self._frame.item_id, "output_index": 0, "content_index": 0}
        return {"type": kind, **where, **rest}

    def _numbered(self, number: int, event: Event) -> Event:
        return {**event, "sequence_number": number}

    def _new(self, events: list[Event]) -> list[Event]:
        """Without those that the client has."""
        return [event for event in events if event["sequence_number"] > self._after]
