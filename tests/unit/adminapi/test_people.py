"""Owners and keys in the console: a secret is shown once, kept hashed, and can be revoked."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from accounts.authentication import caller_of_key
from accounts.models import ApiKey
from inference.errors import AuthenticationError
from tests.cast import Member
from tests.unit.adminapi.record import signed_in, staff_with

KEYS = "/admin/accounts/apikey/"


def create(console: Client, owner: Member, **fields: object) -> str:
    form = {"owner": owner.owner.pk, "name": "rollouts", "scopes": ["infer"], "max_priority": 0}
    response = console.post(f"{KEYS}add/", {**form, **fields})
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    found = re.search(r'id="secret">([^<]+)<', response.content.decode())
    assert found is not None
    return found[1]


def test_it_shows_a_new_secret_once_and_keeps_only_its_hash(console: Client, owner: Member) -> None:
    secret = create(console, owner, max_priority=3)
    key = ApiKey.objects.get(name="rollouts")
    assert (key.scopes, key.max_priority, key.owner) == (["infer"], 3, owner.owner)
    assert caller_of_key(secret).actor == "key:rollouts"
    assert secret not in console.get(KEYS).content.decode()
    assert secret.split(".")[1] not in key.hashed_key


def test_it_revokes_a_key_for_good(console: Client, owner: Member) -> None:
    secret = create(console, owner)
    key = ApiKey.objects.get(name="rollouts")
    console.post(KEYS, {"action": "revoke_selected", "_selected_action": [key.pk]})
    with pytest.raises(AuthenticationError):
        caller_of_key(secret)
    assert "revoked" in console.get(KEYS).content.decode()


@pytest.mark.parametrize("scopes", [[], ["everything"]])
def test_it_refuses_scopes_that_are_none(console: Client, owner: Member, scopes: list[str]) -> None:
    form = {"owner": owner.owner.pk, "name": "rollouts", "scopes": scopes, "max_priority": 0}
    response = console.post(f"{KEYS}add/", form)
    assert response.status_code == 200
    assert 'id="secret"' not in response.content.decode()
    assert not ApiKey.objects.filter(name="rollouts").exists()


def test_it_gives_no_operator_key_to_staff_who_may_not_stop_others_work(owner: Member) -> None:
    clerk = signed_in(staff_with("clerk", "accounts.add_apikey", "accounts.view_apikey"))
    form = {"owner": owner.owner.pk, "name": "mine", "scopes": ["operate"], "max_priority": 0}
    response = clerk.post(f"{KEYS}add/", form)
    assert 'id="secret"' not in response.content.decode()
    assert not ApiKey.objects.filter(name="mine").exists()


def test_it_makes_and_keeps_owners(console: Client) -> None:
    assert console.post("/admin/accounts/owner/add/", {"name": "team-a"}).status_code == 302
    assert "team-a" in console.get("/admin/accounts/owner/").content.decode()


@pytest.mark.parametrize("path", ["auth/user/", "auth/user/add/", "auth/group/", ""])
def test_it_has_pages_for_users_and_groups(console: Client, path: str) -> None:
    assert console.get(f"/admin/{path}").status_code == 200
