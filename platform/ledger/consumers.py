"""Websockets: one request, one abort. Thin: who is it, what may it see, send what changed.

A push only says that something changed; what is sent comes from the rows, which are read again
on every push and, since pushes may be lost, from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from accounts.authentication import PROTOCOL, caller_from_scope
from accounts.callers import Caller
from inference.errors import NotFoundError
from ledger.push import group_of
from ledger.watching import Subject, View, abort_subject, cursor_parse, request_subject

logger = logging.getLogger(__name__)

BAD_KEY = 4401
NOT_FOUND = 4404
REREAD_SECONDS = 15.0
RECHECK_SECONDS = 30.0


class SubjectConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """Snapshot or resume, then changes until the subject's end, then a normal close."""

    find: ClassVar[Callable[..., Subject]]
    reread_seconds: ClassVar[float] = REREAD_SECONDS

    async def connect(self) -> None:
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._group = ""
        caller = await database_sync_to_async(caller_from_scope)(self.scope)
        if caller is not None and caller.user is not None and not origin_is_ours(self.scope):
            await self.close()  # before accepting: a browser sees 403
            return
        offered = self.scope.get("subprotocols", ())
        await self.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        await self._begin(caller)

    async def _begin(self, caller: Caller | None) -> None:
        if caller is None or not caller.may_read:
            await self.close(code=BAD_KEY)
            return
        any_id = self.scope["url_route"]["kwargs"]["any_id"]
        try:
            subject = await database_sync_to_async(type(self).find)(caller=caller, any_id=any_id)
        except NotFoundError:
            await self.close(code=NOT_FOUND)
            return
        # First the group, then the rows: what changes between them is pushed.
        self._group = group_of(subject.kind, subject.object_id)
        await self.channel_layer.group_add(self._group, self.channel_name)
        self._follower = asyncio.create_task(self._follow(subject))

    async def disconnect(self, code: int) -> None:  # noqa: ARG002 (channels' signature)
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)
        if self._follower is not None and self._follower is not asyncio.current_task():
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """Watchers only listen; what they say is ignored."""

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        return text_data

    async def changed(self, message: dict[str, Any]) -> None:  # noqa: ARG002 (a push)
        self._changed.set()

    async def progress(self, message: dict[str, Any]) -> None:
        await self.send_json({**message, "type": "request.progress"})

    async def _follow(self, subject: Subject) -> None:
        try:
            view = await self._first(subject)
            while not view.ended:
                view = await self._next(subject, view)
            await self.close(code=1000)
        except _NotAllowedAnyMoreError:
            await self.close(code=BAD_KEY)
        except Exception:  # whatever it was, the watcher must not sit there in silence
            logger.exception("a watcher of %s was cut off", subject.object_id)
            await self.close(code=1011)

    async def _first(self, subject: Subject) -> View:
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        after = query.get("after", [])
        self._checked_at = asyncio.get_running_loop().time()
        if not after:
            return await self._send(await database_sync_to_async(subject.snapshot)())
        cursor = await database_sync_to_async(cursor_parse)(after[-1])
        if cursor is None:
            await self.send_json({"type": "resync"})
            return await self._send(await database_sync_to_async(subject.snapshot)())
        return await self._send(await database_sync_to_async(subject.changes)(cursor))

    async def _next(self, subject: Subject, view: View) -> View:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.reread_seconds):
                await self._changed.wait()
        self._changed.clear()
        await self._check_again()
        following: View = await database_sync_to_async(subject.changes)(view.cursor)
        while following.message is not None:
            await self._send(following)
            following = await database_sync_to_async(subject.changes)(following.cursor)
        return following

    async def _send(self, view: View) -> View:
        if view.message is not None:
            await self.send_json(view.message)
        return view

    async def _check_again(self) -> None:
        """A key may be revoked, a session may end, while its socket is open."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at < RECHECK_SECONDS:
            return
        self._checked_at = now
        caller = await database_sync_to_async(caller_from_scope)(self.scope)
        if caller is None or not caller.may_read:
            raise _NotAllowedAnyMoreError


class _NotAllowedAnyMoreError(Exception):
    """The key or session that opened the socket is not valid any more."""


class RequestConsumer(SubjectConsumer):
    find = staticmethod(request_subject)


class AbortConsumer(SubjectConsumer):
    find = staticmethod(abort_subject)


def origin_is_ours(scope: dict[str, Any]) -> bool:
    """A browser brings its cookies wherever it is sent from; a session counts only from here."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    origin, host = headers.get(b"origin"), headers.get(b"host")
    return origin is not None and host is not None and urlsplit(origin).netloc == host
