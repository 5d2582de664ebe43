from __future__ import annotations

import stat
from io import StringIO
from pathlib import Path

from django.contrib.auth import authenticate
from django.core.management import call_command

from accounts.authentication import caller_of_key
from accounts.callers import Scope


def bootstrap(home: Path) -> str:
    told = StringIO()
    call_command("bootstrap", home=home, stdout=told, skip_checks=True)
    return told.getvalue()


def test_it_makes_the_first_user_and_keys_once(db: None, tmp_path: Path) -> None:
    told = bootstrap(tmp_path)
    operator = (tmp_path / "operator.key").read_text().strip()
    client = (tmp_path / "client.key").read_text().strip()
    password = (tmp_path / "admin.password").read_text().strip()
    assert caller_of_key(operator).scopes == frozenset(Scope)
    assert caller_of_key(client).scopes == frozenset({Scope.INFER})
    assert authenticate(username="admin", password=password) is not None
    for secret in (operator, client, password):
        assert told.count(secret) == 1
    assert bootstrap(tmp_path) == ""
    assert (tmp_path / "operator.key").read_text().strip() == operator


def test_it_keeps_secrets_from_other_users(db: None, tmp_path: Path) -> None:
    bootstrap(tmp_path / "home")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "home").iterdir()}
    assert modes == {0o600}
