"""By what name this server may be called; Django's own middleware, for the console's pages only.

Each of Django's would take an API request through a thread twice, for sessions and forms that an
API call does not have. REST framework checks CSRF itself where a session is used as credentials.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware import clickjacking, common, csrf, security
from django.utils.deprecation import MiddlewareMixin

from gateway.api.errors import error_response
from inference.errors import InvalidRequestError

CONSOLE_PATHS = ("/admin/", "/admin", "/schema/", "/schema")

if TYPE_CHECKING:
    Base = MiddlewareMixin
else:
    Base = object


def is_console(path: str) -> bool:
    return path in CONSOLE_PATHS or path.startswith(("/admin/", "/schema/"))


def is_health_check(path: str) -> bool:
    """Load balancers ask by address."""
    return path in {"/health", "/ping"} or path.startswith("/health/")


class HostMiddleware(MiddlewareMixin):
    """Refuses a Host that is not allowed on every path: the API's views never look at it."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if is_health_check(request.path_info):
            return self.get_response(request)
        try:
            request.get_host()
        except DisallowedHost:
            refusal = error_response(
                InvalidRequestError("This Host is not one of HALTLINE_ALLOWED_HOSTS.")
            )
            return _soon(refusal) if self.async_mode else refusal
        return self.get_response(request)


async def _soon(response: HttpResponseBase) -> HttpResponseBase:
    return response


class ConsoleOnly(Base):
    """Mixed in before a middleware: other paths go straight on."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if is_console(request.path_info):
            return super().__call__(request)
        return self.get_response(request)


class SecurityMiddleware(ConsoleOnly, security.SecurityMiddleware):
    pass


class SessionMiddleware(ConsoleOnly, sessions.SessionMiddleware):
    pass


class CommonMiddleware(ConsoleOnly, common.CommonMiddleware):
    pass


class CsrfViewMiddleware(ConsoleOnly, csrf.CsrfViewMiddleware):
    async def process_view(  # type: ignore[override]  # Django awaits it
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        """Django calls this one for every path, whatever `__call__` did."""
        if not is_console(request.path_info):
            return None
        check = sync_to_async(super().process_view)
        found: HttpResponseBase | None = await check(request, view, args, kwargs)
        return found


class AuthenticationMiddleware(ConsoleOnly, auth.AuthenticationMiddleware):
    pass


class MessageMiddleware(ConsoleOnly, messages.MessageMiddleware):
    pass


class XFrameOptionsMiddleware(ConsoleOnly, clickjacking.XFrameOptionsMiddleware):
    pass
