"""The cast: who acts in the tests, with their rows, keys and callers.

`owner` and `teammate` are two keys of one owner, `stranger` is a key of another, `operator` may
see and stop everything, `staff` is a user of the console. Asking for one makes its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from accounts.callers import Caller
    from accounts.models import Owner

STAFF_PASSWORD = "correct horse battery staple"


@dataclass(frozen=True)
class Member:
    """One key: whose it is, the secret that a client sends, and the caller that it becomes."""

    name: str
    owner: Owner
    secret: str
    caller: Caller

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


def member(name: str, *, owner_name: str, scopes: tuple[str, ...] = ("infer",)) -> Member:
    from accounts.callers import Caller, Scope
    from accounts.services import key_create, owner_ensure

    owner = owner_ensure(name=owner_name)
    wanted = frozenset(Scope(scope) for scope in scopes)
    key, secret = key_create(owner=owner, name=name, scopes=sorted(wanted))
    caller = Caller(
        actor=f"key:{name}",
        owner_id=owner.pk,
        scopes=wanted,
        max_priority=key.max_priority,
        user=None,
        key_id=key.prefix,
    )
    return Member(name=name, owner=owner, secret=secret, caller=caller)


@pytest.fixture
def owner(db: None) -> Member:
    return member("owner", owner_name="tenant")


@pytest.fixture
def teammate(db: None) -> Member:
    return member("teammate", owner_name="tenant")


@pytest.fixture
def stranger(db: None) -> Member:
    return member("stranger", owner_name="elsewhere")


@pytest.fixture
def operator(db: None) -> Member:
    return member("operator", owner_name="operations", scopes=("infer", "operate"))


@pytest.fixture
def staff(db: None) -> User:
    """A member of staff who may do everything in the console; password `STAFF_PASSWORD`."""
    from django.contrib.auth.models import User

    return User.objects.create_superuser("boss", "", STAFF_PASSWORD)
