"""The base of async API views: REST framework's rules in a database thread, the rest in the loop.

Authentication, permissions, parsing and `prepare` run together in one hop to a database thread;
the handler is a coroutine that gets what `prepare` returned. Responses are rendered already, so
nothing else needs a thread. drf-spectacular documents these views like any others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from gateway.api.parsers import StrictJSONParser
from gateway.background import spawn
from gateway.database import in_database

Prepared = TypeVar("Prepared")


class AsyncAPIView(APIView, Generic[Prepared]):
    """Subclasses define `async def get(self, request, prepared)`, and so on."""

    # Django would look at each handler; drf-spectacular wraps some in plain functions.
    view_is_async = True
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    parser_classes = [StrictJSONParser]

    def prepare(self, request: Request) -> Prepared:
        """What needs the database, before the handler runs. In a database thread."""
        raise NotImplementedError

    def headers_at_first(self, request: HttpRequest) -> dict[str, str]:  # noqa: ARG002
        """Headers of every answer, errors included; handlers may add to `self.headers`."""
        return {}

    async def abandoned(self, prepared: Prepared) -> None:
        """The client left while `prepare` ran: undo what it did."""

    async def dispatch(  # type: ignore[override]  # async where the base is not
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        self.headers: dict[str, str] = self.headers_at_first(request)
        try:
            handler = self._handler((request.method or "").lower())
            prepared = await self._prepared()
            response = await handler(self.request, prepared, **kwargs)
        except Exception as problem:  # noqa: BLE001 - the one handler renders them all
            response = self.handle_exception(problem)
        for name, value in self.headers.items():
            response[name] = value
        return response

    def _handler(self, method: str) -> Callable[..., Awaitable[HttpResponseBase]]:
        if method not in self.http_method_names or not hasattr(self, method):
            raise MethodNotAllowed(method.upper())
        handler: Callable[..., Awaitable[HttpResponseBase]] = getattr(self, method)
        return handler

    async def _prepared(self) -> Prepared:
        """A client that leaves does not stop the thread, so what that did must be undone."""
        work = asyncio.ensure_future(in_database(self._in_thread))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            spawn(self._clean_up(work), name=f"abandoned {type(self).__name__}")
            raise

    async def _clean_up(self, work: asyncio.Future[Prepared]) -> None:
        try:
            prepared = await work
        except Exception:  # noqa: BLE001 - it failed before it did anything, and nobody waits
            return
        await self.abandoned(prepared)

    def _in_thread(self) -> Prepared:
        self.initial(self.request, *self.args, **self.kwargs)
        return self.prepare(self.request)
