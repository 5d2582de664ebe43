"""Writes about who may call: owners, keys, staff. Keyword-only; a secret is returned once."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from accounts.callers import Scope
from accounts.models import ApiKey, Membership, Owner
from inference.errors import InvalidRequestError


def owner_ensure(*, name: str) -> Owner:
    """The owner of that name, made if absent. Raises `InvalidRequestError` for a bad name."""
    found = Owner.objects.filter(name=name).first()
    if found is not None:
        return found
    try:
        Owner(name=name).clean_fields()
    except ValidationError as problem:
        raise InvalidRequestError("; ".join(problem.messages), param="name") from problem
    return Owner.objects.get_or_create(name=name)[0]


def key_create(
    *, owner: Owner, name: str, scopes: Iterable[Scope], max_priority: int = 0
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is kept nowhere. Raises `InvalidRequestError`."""
    wanted = sorted(Scope(scope).value for scope in set(scopes))
    if not wanted:
        raise InvalidRequestError("a key needs at least one scope", param="scopes")
    key, secret = ApiKey.objects.create_key(
        owner=owner, name=name, scopes=wanted, max_priority=max_priority
    )
    return key, secret


def key_revoke(*, key: ApiKey) -> None:
    """For good; safe to repeat."""
    key.revoked = True
    key.save(update_fields=["revoked"])


def staff_create(
    *, username: str, password: str, owner: Owner | None = None, superuser: bool = False
) -> User:
    """A staff user; without `superuser` it may do what its permissions say, at first nothing."""
    user = User(username=username, is_staff=True)
    user.is_superuser = superuser
    user.set_password(password)
    user.save()
    if owner is not None:
        Membership.objects.create(user=user, owner=owner)
    return user
