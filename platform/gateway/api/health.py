"""`/health/live`, `/health/ready`, and the short forms `/health` and `/ping` of other servers.

Open to everyone, so they say how it stands and, except to operators, nothing of why.
"""

from __future__ import annotations

import asyncio

from django.db import DatabaseError
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request

from accounts.callers import Caller
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.readiness import DEADLINE, readiness_of
from gateway.relay import relay_get
from inference.errors import HaltlineError

UNAVAILABLE = 503


class OpenView(AsyncAPIView[None]):
    """For anyone, with or without a database."""

    authentication_classes = []
    permission_classes = []

    async def _prepared(self) -> None:
        """No hop to a database thread: there is nothing to look up."""
        self.initial(self.request)


@extend_schema_view(
    get=extend_schema(responses=OpenApiTypes.OBJECT, operation_id="health_live", auth=[])
)
class LiveView(OpenView):
    """The process serves."""

    async def get(self, _request: Request, _prepared: None) -> HttpResponse:
        return json_response({"status": "live"})


@extend_schema_view(
    get=extend_schema(responses=OpenApiTypes.OBJECT, operation_id="health_ready", auth=[])
)
class ReadyView(AsyncAPIView[bool]):
    """Database, broker, a Celery worker and an engine answer."""

    permission_classes = []

    def perform_authentication(self, request: Request) -> None:
        """Later, and only for those who want reasons: see `prepare`."""

    def prepare(self, request: Request) -> bool:
        """Whether the caller may read reasons. A bad key, or no database, is no reason to fail."""
        try:
            caller = request.auth
        except (HaltlineError, DatabaseError):
            return False
        return isinstance(caller, Caller) and caller.operates

    async def _prepared(self) -> bool:
        """A database that hangs must not keep this answer back."""
        try:
            async with asyncio.timeout(DEADLINE):
                return await super()._prepared()
        except TimeoutError:
            return False

    async def get(self, _request: Request, prepared: bool) -> HttpResponse:
        found = await readiness_of(relay_get()).look()
        body: dict[str, object] = {"status": "ready" if found.ready else "unready"}
        if prepared and not found.ready:
            body["problems"] = found.problems
        return json_response(body, status=200 if found.ready else UNAVAILABLE)


@extend_schema_view(
    get=extend_schema(responses={200: None, 503: None}, operation_id="health", auth=[])
)
class HealthView(OpenView):
    """As other servers answer it: an empty 200 while there is an engine that takes work."""

    async def get(self, _request: Request, _prepared: None) -> HttpResponse:
        return HttpResponse(status=200 if relay_get().status().ready else UNAVAILABLE)


@extend_schema_view(
    get=extend_schema(responses={200: None, 503: None}, operation_id="ping", auth=[])
)
class PingView(HealthView):
    """The same under another name."""

    async def get(self, _request: Request, _prepared: None) -> HttpResponse:
        return await super().get(_request, _prepared)
