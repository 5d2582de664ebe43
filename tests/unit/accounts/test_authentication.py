from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from accounts.authentication import (
    KeyAuthentication,
    StaffSessionAuthentication,
    caller_from_scope,
    caller_of_key,
    caller_of_user,
)
from accounts.callers import Caller, Scope
from accounts.models import ApiKey
from accounts.permissions import CanAbort, CanInfer, CanOperate, CanRead, CanSeeReplicas
from accounts.services import key_create, key_revoke, owner_ensure, staff_create
from inference.errors import AuthenticationError, InvalidRequestError, PermissionDeniedError
from tests.cast import STAFF_PASSWORD, Member

factory = APIRequestFactory(enforce_csrf_checks=True)


def request(method: str = "get", **options: Any) -> Request:
    raw = getattr(factory, method)("/", **options)
    authenticators = [KeyAuthentication(), StaffSessionAuthentication()]
    return Request(raw, authenticators=authenticators)


def session_of(client: Client) -> str:
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def test_it_knows_a_key_by_its_secret(owner: Member) -> None:
    caller = caller_of_key(owner.secret)
    assert (caller.actor, caller.owner_id) == ("key:owner", owner.owner.pk)
    assert caller.may_infer
    assert caller.may_abort
    assert not caller.sees_all
    assert not caller.may_abort_all
    assert ApiKey.objects.get(name="owner").last_used_at is not None


@pytest.mark.parametrize("change", ["revoked", "expired", "other", "none", "scheme", "nul"])
def test_it_refuses_a_key_that_is_not_valid(owner: Member, change: str) -> None:
    key = ApiKey.objects.get(name="owner")
    header = f"Bearer {owner.secret}"
    if change == "revoked":
        key_revoke(key=key)
    elif change == "expired":
        ApiKey.objects.update(expiry_date=timezone.now() - timedelta(seconds=1))
    elif change == "scheme":
        header = f"Basic {owner.secret}"
    else:
        header = {"other": header + "x", "none": "Bearer ", "nul": "Bearer a\x00.b"}[change]
    with pytest.raises(AuthenticationError):
        _ = request(HTTP_AUTHORIZATION=header).auth


def test_it_writes_the_use_of_a_busy_key_once(
    owner: Member, django_assert_num_queries: Any
) -> None:
    caller_of_key(owner.secret)
    with django_assert_num_queries(1):
        caller_of_key(owner.secret)


def test_it_gives_a_staff_session_its_permissions_and_asks_for_the_token(
    staff: User, client: Client
) -> None:
    client.force_login(staff)
    factory.cookies[settings.SESSION_COOKIE_NAME] = session_of(client)
    try:
        caller = request().auth
        assert isinstance(caller, Caller)
        assert caller.actor == "user:boss"
        assert caller.may_abort_all
        with pytest.raises(PermissionDeniedError, match="CSRF token"):
            _ = request("post").auth
    finally:
        factory.cookies.clear()


def test_it_ends_with_the_session(staff: User, client: Client) -> None:
    client.login(username="boss", password=STAFF_PASSWORD)
    cookie = f"{settings.SESSION_COOKIE_NAME}={session_of(client)}".encode()
    scope = {"headers": [(b"cookie", cookie)], "subprotocols": []}
    assert caller_from_scope(scope) is not None
    client.logout()
    assert caller_from_scope(scope) is None


def test_it_gives_plain_staff_nothing_but_its_permissions(db: None) -> None:
    user = staff_create(username="viewer", password="x", owner=owner_ensure(name="tenant"))
    assert not caller_of_user(user).may_read
    user.user_permissions.add(Permission.objects.get(codename="view_inferencerequest"))
    caller = caller_of_user(User.objects.get(pk=user.pk))
    assert caller.sees_all
    assert not caller.may_abort
    assert not caller.may_infer


def test_it_takes_no_session_of_a_user_who_is_not_staff(client: Client, db: None) -> None:
    client.force_login(User.objects.create_user("guest"))
    cookie = f"{settings.SESSION_COOKIE_NAME}={session_of(client)}".encode()
    assert caller_from_scope({"headers": [(b"cookie", cookie)]}) is None


def test_it_asks_each_route_for_its_own_right(owner: Member, operator: Member) -> None:
    def allowed(member: Member) -> list[bool]:
        asked = request(HTTP_AUTHORIZATION=f"Bearer {member.secret}")
        rights = (CanInfer, CanRead, CanAbort, CanOperate, CanSeeReplicas)
        return [right().has_permission(asked, None) for right in rights]

    assert allowed(owner) == [True, True, True, False, False]
    assert allowed(operator) == [True] * 5
    assert not CanRead().has_permission(request(), None)


def test_it_refuses_names_and_scopes_that_make_no_sense(db: None) -> None:
    for name in ("", "a b", "-x", "x" * 65):
        with pytest.raises(InvalidRequestError):
            owner_ensure(name=name)
    with pytest.raises(InvalidRequestError):
        key_create(owner=owner_ensure(name="tenant"), name="k", scopes=[])
    key, secret = key_create(owner=owner_ensure(name="tenant"), name="k", scopes=[Scope.INFER])
    assert secret not in (key.hashed_key, key.pk)
