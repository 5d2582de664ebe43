"""Requests whose engine was lost before they had begun: each waits here for another engine.

The record decides who may run again, once, and under which generation; whoever may not is told
how it ended. Clients wait meanwhile, for a bounded time. While a request is here no engine holds
it, so an abort, a deadline or the end of patience is a compare-and-set of its row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from gateway.background import spawn
from gateway.fates import Fate, due_at, fate_of
from gateway.line import LineTimes
from gateway.link import Link
from gateway.mailbox import Mailbox
from gateway.record import Record
from inference.errors import EngineLostError, HaltlineError
from inference.generation import AbortCause
from inference.wire import RequestKey, Submit
from ledger.specs import SUBMIT_WITHIN, Placement, Received

logger = logging.getLogger(__name__)

# So many are placed together: then loads are compared anew.
AT_ONCE = 32

# Where a request for this model can go now. Raises `HaltlineError` if it cannot go anywhere.
Place = Callable[[str], tuple[Link, Placement]]
# Tells these clients how the record says that their requests ended: the ids that had.
Tell = Callable[[Sequence[Mailbox]], Awaitable[set[str]]]


class Requeue:
    """A `Carrier`: of mailboxes that no engine fills. Used from the relay's event loop."""

    def __init__(self, *, place: Place, record: Record, tell: Tell, times: LineTimes) -> None:
        self._place, self._record, self._tell, self._times = place, record, tell, times
        self._mailboxes: dict[str, Mailbox] = {}
        # Those that the record lets run again, and when their clients have waited long enough.
        self._ready: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def mailboxes(self) -> list[Mailbox]:
        return list(self._mailboxes.values())

    def find(self, request_id: str) -> Mailbox | None:
        return self._mailboxes.get(request_id)

    def wake(self) -> None:
        """Something has changed: an engine is there, or somebody left."""
        self._wake.set()

    def abort(self, _mailbox: Mailbox, _cause: AbortCause) -> None:
        """The mailbox says why; the next turn settles the row."""
        self.wake()

    def forget(self, _mailbox: Mailbox) -> None:
        """Its row has still to be settled: it stays until then."""

    async def take(self, lost: list[Mailbox], *, replica: str, epoch: str) -> None:
        """The engine of this epoch is gone, and had these. Returns once that is recorded."""
        for mailbox in lost:
            mailbox.carrier, mailbox.sent_at = self, None
            self._mailboxes[mailbox.key.request_id] = mailbox
        if self._closed:
            self._give_up(lost)
            return
        try:
            again = await self._record.requeue(
                replica=replica, epoch=epoch, received=[_received(mailbox) for mailbox in lost]
            )
            await self._tell_how(box for box in lost if box.key.request_id not in again)
        except Exception:  # whatever the database says, clients must not wait: sweeps end the rows
            logger.exception("the loss of %d requests could not be recorded", len(lost))
            self._give_up(lost)
            return
        self._keep(box for box in lost if box.key.request_id in again)

    def close(self) -> None:
        """Nothing is placed any more."""
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
        self._give_up(self.mailboxes)

    # -- those that may run again

    def _keep(self, mailboxes: Iterable[Mailbox]) -> None:
        until = asyncio.get_running_loop().time() + self._times.requeue
        for mailbox in mailboxes:
            if mailbox.ended:
                continue
            key = RequestKey(mailbox.key.request_id, mailbox.key.generation + 1)
            mailbox.submission = msgspec.structs.replace(mailbox.submission, key=key)
            self._mailboxes[key.request_id] = mailbox
            self._ready[key.request_id] = until
        self.wake()
        if self._ready and (self._runner is None or self._runner.done()):
            self._runner = spawn(self._run(), name="requeue")

    async def _run(self) -> None:
        while self._ready:
            self._wake.clear()
            try:
                await self._turn()
            except Exception:  # as above: whatever failed, these clients are told
                logger.exception("%d requests could not be placed again", len(self._ready))
                self._give_up([self._mailboxes[one] for one in self._ready])
            await self._pause()

    async def _turn(self) -> None:
        for told in [box for box in self._mailboxes.values() if box.ended]:
            self._drop(told)
        now = asyncio.get_running_loop().time()
        fated: dict[Fate, list[Mailbox]] = defaultdict(list)
        free: dict[str, list[Mailbox]] = defaultdict(list)
        for request_id, until in self._ready.items():
            mailbox = self._mailboxes[request_id]
            fate = fate_of(mailbox, until, now)
            if fate is not None:
                fated[fate].append(mailbox)
            else:
                free[mailbox.submission.model].append(mailbox)
        for fate, mailboxes in fated.items():
            await self._settle(mailboxes, fate)
        for model, mailboxes in free.items():
            await self._place_some(model, mailboxes[:AT_ONCE])

    async def _pause(self) -> None:
        """Until something changes, or the first of those that wait has run out of time."""
        dues = [due_at(self._mailboxes[one], until) for one, until in self._ready.items()]
        left = min(dues, default=0.0) - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(max(left, 0.0), self._times.ask)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _settle(self, mailboxes: list[Mailbox], fate: Fate) -> None:
        keys = [mailbox.key for mailbox in mailboxes]
        await self._record.settle(keys, trigger=fate.trigger, fields=dict(fate.fields))
        await self._tell_how(mailboxes)

    async def _place_some(self, model: str, mailboxes: list[Mailbox]) -> None:
        try:
            link, placement = self._place(model)
        except HaltlineError:
            return
        began = asyncio.get_running_loop().time()
        placed = await self._record.place([mailbox.key for mailbox in mailboxes], placement)
        mine = [box for box in mailboxes if box.key.request_id in placed]
        await self._tell_how(box for box in mailboxes if box.key.request_id not in placed)
        unsent = [mailbox for mailbox in mine if not self._send(mailbox, link, began)]
        if unsent:
            await self.take(unsent, replica=placement.replica, epoch=placement.epoch)
        self.wake()

    def _send(self, mailbox: Mailbox, link: Link, queued_at: float) -> bool:
        now = asyncio.get_running_loop().time()
        self._drop(mailbox)
        if mailbox.ended:  # told meanwhile: its row has ended
            return True
        mailbox.submission = _later(mailbox.submission, by=now - mailbox.began_at)
        if now - queued_at > SUBMIT_WITHIN or not link.carry(mailbox):
            return False
        if mailbox.stopping is not None:
            link.abort(mailbox, mailbox.stopping)
        return True

    # -- those that do not

    async def _tell_how(self, mailboxes: Iterable[Mailbox]) -> None:
        """What is in no record is lost all the same: the client must not wait for it."""
        ended = list(mailboxes)
        told = await self._tell(ended) if ended else set()
        self._give_up([box for box in ended if box.key.request_id not in told])
        for mailbox in ended:
            self._drop(mailbox)

    def _give_up(self, mailboxes: Iterable[Mailbox]) -> None:
        for mailbox in mailboxes:
            self._drop(mailbox)
            mailbox.lose(EngineLostError(request_id=mailbox.key.request_id))

    def _drop(self, mailbox: Mailbox) -> None:
        self._ready.pop(mailbox.key.request_id, None)
        self._mailboxes.pop(mailbox.key.request_id, None)


def _received(mailbox: Mailbox) -> Received:
    begun = [(index, one) for index, one in enumerate(mailbox.progress) if one.has_begun]
    return Received(
        request_id=mailbox.key.request_id,
        generation=mailbox.key.generation,
        begun=mailbox.begun,
        ends=[choice.end(index) for index, choice in begun],
    )


def _later(submission: Submit, *, by: float) -> Submit:
    """Deadlines run on while a request waits; an engine counts them from its receipt."""
    left = {
        name: max(0.0, getattr(submission, name) - by)
        for name in ("deadline", "queue_deadline")
        if getattr(submission, name) is not None
    }
    return msgspec.structs.replace(submission, **left)
