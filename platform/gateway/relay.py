"""One per web process: its links to every engine, where new work goes, and the way to stop work.

The links live in the event loop of the server; `relay_abort_soon` may be called from any thread.
What an engine takes with it when it is lost goes to `gateway.requeue`, what ends without an
engine's word comes from `gateway.ends`. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from django.conf import settings

from gateway.acceptance import accepted
from gateway.background import spawn
from gateway.ends import Ends
from gateway.line import LineTimes
from gateway.link import Link
from gateway.mailbox import Mailbox
from gateway.record import Record
from gateway.requeue import Requeue
from inference.bus import Bus
from inference.bus.socket import SocketBus
from inference.errors import ModelNotFoundError, UnavailableError
from inference.generation import AbortCause
from inference.wire import AbortInfo, RequestKey, Submit, Welcome
from ledger.specs import Placement

logger = logging.getLogger(__name__)

RETRY_AFTER = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """`since`: when this process first heard of it, in seconds since the epoch."""

    name: str
    max_model_len: int
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatus:
    """Why new work can or cannot be placed: one line per link that is not well."""

    ready: bool
    problems: list[str] = field(default_factory=list)


class Relay:
    """`buses`: one per engine. Made, started and stopped in the same event loop."""

    def __init__(
        self,
        buses: Mapping[str, Bus],
        *,
        secret: str = "",
        times: LineTimes | None = None,
        record: Record | None = None,
    ) -> None:
        self.web = f"web-{secrets.token_hex(6)}"
        self.draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._secret = secret
        self._times = times or LineTimes()
        record = record or Record(self.web)
        self._ends = Ends(
            web=self.web,
            mailboxes=lambda: self.mailboxes,
            find=self._find,
            record=record,
            times=self._times,
        )
        self._requeue = Requeue(
            place=self._link_and_place, record=record, tell=self._ends.tell, times=self._times
        )
        self._links = {url: self._link(bus) for url, bus in buses.items()}

    def _link(self, bus: Bus) -> Link:
        return Link(
            bus,
            name=self.web,
            secret=self._secret,
            on_up=self._requeue.wake,
            on_loss=self._lose,
            times=self._times,
        )

    # -- life

    def start(self) -> None:
        """Begin to connect, in the running loop. Safe to call again."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        for url, link in self._links.items():
            self._tasks.append(spawn(link.line.run(), name=f"link {url}"))
        self._tasks.append(spawn(self._ends.listen(), name="pushed ends"))
        self._tasks.append(spawn(self._ends.look(), name="silent requests"))

    async def stop(self) -> None:
        """Close every link. What is still attached to them is aborted by the engines."""
        self._requeue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks, self._loop = [], None

    def drain(self) -> None:
        """Take no new work from now on."""
        self.draining = True

    def abort_all(self, cause: AbortCause) -> None:
        """Stop everything that clients of this process wait for; they get their last chunks."""
        for mailbox in self.mailboxes:
            mailbox.abort(cause)

    # -- work

    @property
    def mailboxes(self) -> list[Mailbox]:
        """Of everything that clients of this process wait for."""
        carried = [mailbox for link in self._links.values() for mailbox in link.mailboxes]
        return carried + self._requeue.mailboxes

    def place(self, model: str) -> Placement:
        """Where a request for `model` goes now. May be called from any thread.

        Raises `ModelNotFoundError` for a model that nobody serves and `UnavailableError` if those
        who do cannot take work.
        """
        return self._link_and_place(model)[1]

    async def submit(
        self, placement: Placement, submission: Submit, *, is_late: bool = False
    ) -> Mailbox:
        """Hand the request to the engine that it was placed on; returns once one has accepted it.

        If that engine is gone, or the placement is too old (`is_late`), it is placed again, and
        maybe elsewhere. Raises the error that an engine names, or
        that ended the request; `EngineLostError` if no engine is there in time,
        `UnavailableError` without an answer in time. A cancellation aborts the request.
        """
        mailbox = Mailbox(submission=submission, carrier=self._requeue)
        link = self.link_to(placement)
        if is_late or link is None or not link.carry(mailbox):
            take = self._requeue.take([mailbox], replica=placement.replica, epoch=placement.epoch)
            spawn(take, name=f"requeue of {submission.key.request_id}")
        return await accepted(mailbox, self._times)

    def link_to(self, placement: Placement) -> Link | None:
        """The link to the very engine that something was placed on."""
        return next((one for one in self._links.values() if one.is_at(placement)), None)

    def abort_soon(self, keys_by_replica: Mapping[str, list[RequestKey]], info: AbortInfo) -> None:
        """Send the aborts that this process has a link for. From any thread; never waits."""
        loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed: so have its links
            loop.call_soon_threadsafe(self._abort, dict(keys_by_replica), info)

    # -- what is there

    def models(self) -> list[ServedModel]:
        """Those that this process has seen an engine serve, present or not."""
        found: dict[str, ServedModel] = {}
        for link in self._links.values():
            if link.welcome is not None:
                model = ServedModel(
                    name=link.welcome.model,
                    max_model_len=link.welcome.max_model_len,
                    since=link.model_since,
                )
                found.setdefault(model.name, model)
        return list(found.values())

    def link_for(self, model: str | None = None) -> Link:
        """A link whose engine serves `model`, or any model. Raises as `place` does."""
        return self._least_loaded(model)

    def status(self) -> RelayStatus:
        """Whether at least one engine can take work, by what its last answers say."""
        problems = [text for link in self._links.values() if (text := link.problem)]
        ready = len(problems) < len(self._links) and not self.draining
        if self.draining:
            problems.append("this web process is shutting down")
        return RelayStatus(ready=ready, problems=problems)

    async def answers(self, *, within: float) -> bool:
        """Whether an engine that can take work answers a question in time."""
        links = [link for link in self._links.values() if not link.problem]
        asked = [asyncio.ensure_future(link.ask()) for link in links]
        if not asked:
            return False
        done, late = await asyncio.wait(asked, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        for question in late:
            question.cancel()
        return any(question.exception() is None for question in done)

    def _least_loaded(self, model: str | None) -> Link:
        if self.draining:
            raise UnavailableError("The server is shutting down.", retry_after=RETRY_AFTER)
        known = self.models()
        if known and model is not None and all(one.name != model for one in known):
            raise ModelNotFoundError(f"The model {model!r} does not exist.", param="model")
        able = [link for link in self._links.values() if link.serves(model)]
        if not able:
            raise UnavailableError(retry_after=RETRY_AFTER)
        return min(able, key=lambda link: link.load)

    def _abort(self, keys_by_replica: Mapping[str, list[RequestKey]], info: AbortInfo) -> None:
        for link in self._links.values():
            keys = keys_by_replica.get(link.welcome.replica) if link.welcome else None
            if keys:
                link.abort_keys(keys, info)

    def _link_and_place(self, model: str) -> tuple[Link, Placement]:
        link = self._least_loaded(model)
        assert link.welcome is not None  # noqa: S101 - `_least_loaded` looks at nothing else
        welcome = link.welcome
        return link, Placement(replica=welcome.replica, epoch=welcome.epoch, web=self.web)

    def _find(self, request_id: str) -> Mailbox | None:
        found = (link.find(request_id) for link in self._links.values())
        carried = next((mailbox for mailbox in found if mailbox is not None), None)
        return carried or self._requeue.find(request_id)

    async def _lose(self, welcome: Welcome, lost: list[Mailbox]) -> None:
        await self._requeue.take(lost, replica=welcome.replica, epoch=welcome.epoch)


_relay: Relay | None = None


def relay_get() -> Relay:
    """This process's relay, made from the settings at first use; started by the server."""
    global _relay  # noqa: PLW0603 - one per process is the point
    if _relay is None:
        buses = {url: SocketBus(url) for url in settings.HALTLINE_BUS_URLS}
        _relay = Relay(buses, secret=settings.HALTLINE_BUS_SECRET)
    return _relay


def relay_use(relay: Relay | None) -> Callable[[], None]:
    """Put another relay in its place; returns what puts the former one back."""
    global _relay
    former, _relay = _relay, relay

    def restore() -> None:
        global _relay  # noqa: PLW0603 - see `relay_get`
        _relay = former

    return restore


def relay_abort_soon(keys_by_replica: Mapping[str, list[RequestKey]], info: AbortInfo) -> None:
    """Send aborts over this process's links, from any thread; never waits, never raises.

    A process without links, or with one that is down, sends nothing: the abort's task does.
    """
    if _relay is not None:
        _relay.abort_soon(keys_by_replica, info)
