"""How a caller proves who it is: an API key, or a staff user's session. For DRF and Channels.

`request.auth` is always a `Caller`. This module answers who it is; `accounts.permissions` and
the services decide what that allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from accounts.callers import Caller, Scope
from accounts.models import ApiKey, Membership
from inference.errors import AuthenticationError, PermissionDeniedError

PROTOCOL = "haltline.v1"
KEY_PROTOCOL_PREFIX = "haltline.key."
_USE_IS_NOTED_EVERY = timedelta(minutes=1)


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`. Raises `AuthenticationError` for a key that is not valid."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Caller] | None:
        key = bearer_key(request.META.get("HTTP_AUTHORIZATION", ""))
        if key is None:
            return None
        return AnonymousUser(), caller_of_key(key)

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 (DRF's signature)
        return 'Bearer realm="haltline"'


class StaffSessionAuthentication(SessionAuthentication):
    """The console's session. Unsafe methods need the CSRF token, as in Django's own forms."""

    def authenticate(self, request: Request) -> tuple[User, Caller] | None:
        user = session_user(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
        if user is None:
            return None
        self.enforce_csrf(request)
        return user, caller_of_user(user)

    def enforce_csrf(self, request: Request) -> None:
        """Raises `PermissionDeniedError` that says what is wrong with the token or the origin."""
        try:
            super().enforce_csrf(request)
        except PermissionDenied as refused:
            raise PermissionDeniedError(
                "A call with a session needs the CSRF token of its cookie, as X-CSRFToken. "
                f"{refused.detail}"
            ) from refused


def caller_of(request: Request) -> Caller:
    """The caller of an authenticated request. Raises `AuthenticationError` if there is none."""
    if isinstance(request.auth, Caller):
        return request.auth
    raise AuthenticationError


def bearer_key(header: str) -> str | None:
    """The key in an Authorization header; None where there is no header at all.

    Raises `AuthenticationError` for a header of another scheme or shape.
    """
    if not header:
        return None
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationError
    return key.strip()


def caller_of_key(key: str) -> Caller:
    """Raises `AuthenticationError` for a key that is unknown, revoked or expired."""
    prefix, _, _ = key.partition(".")
    if not key.isascii() or not key.isprintable():
        raise AuthenticationError  # PostgreSQL would refuse even to look for NUL
    found = ApiKey.objects.filter(prefix=prefix, revoked=False).select_related("owner").first()
    if found is None or not found.is_valid(key) or found.has_expired:
        raise AuthenticationError
    _note_use(found)
    return Caller(
        actor=f"key:{found.name}",
        owner_id=found.owner_id,
        scopes=frozenset(Scope(scope) for scope in found.scopes),
        max_priority=found.max_priority,
        key_id=found.prefix,
    )


def _note_use(key: ApiKey) -> None:
    """At most one write a minute, so that a busy key costs none."""
    now = timezone.now()
    if key.last_used_at is not None and now - key.last_used_at < _USE_IS_NOTED_EVERY:
        return
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - _USE_IS_NOTED_EVERY)
    ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)


def caller_of_user(user: User) -> Caller:
    """A staff user: no scopes, only what Django's permissions give."""
    membership = Membership.objects.filter(user_id=user.pk).first()
    return Caller(
        actor=f"user:{user.get_username()}",
        owner_id=membership.owner_id if membership else None,
        user=user,
        permissions=frozenset(user.get_all_permissions()),
    )


def session_user(session_key: str | None) -> User | None:
    """The active staff user of a session, read afresh: API paths skip the session middleware."""
    if not session_key or not session_key.isalnum():
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if not user.is_authenticated or not user.is_active or not user.is_staff:
        return None
    return user


def caller_from_scope(scope: Mapping[str, Any]) -> Caller | None:
    """The caller of a websocket: header, subprotocol `haltline.key.<key>`, or staff session.

    None where nobody valid is named. Reads the database: call it in a database thread.
    """
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        key = bearer_key(headers.get(b"authorization", "")) or next(_protocol_keys(scope), None)
        if key is not None:
            return caller_of_key(key)
    except AuthenticationError:
        return None
    user = session_user(_session_cookie(headers.get(b"cookie", "")))
    return caller_of_user(user) if user is not None else None


def _protocol_keys(scope: Mapping[str, Any]) -> Iterator[str]:
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(KEY_PROTOCOL_PREFIX):
            yield protocol.removeprefix(KEY_PROTOCOL_PREFIX)


def _session_cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(settings.SESSION_COOKIE_NAME)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None
