"""`manage.py bootstrap`: the first staff user and API keys, made only where they are absent.

Each secret is shown once and kept in a file that only the user can read.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from accounts.callers import Scope
from accounts.models import ApiKey
from accounts.services import key_create, owner_ensure, staff_create


class Command(BaseCommand):
    help = "Make the first staff user and API keys where they are absent."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--home", type=Path, required=True, help="folder of the secret files")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        home: Path = options["home"]
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ensure_staff(home)
        self._ensure_key(home, owner="operations", name="operator", scopes=frozenset(Scope))
        self._ensure_key(home, owner="default", name="client", scopes=frozenset({Scope.INFER}))

    @transaction.atomic
    def _ensure_staff(self, home: Path) -> None:
        if get_user_model().objects.filter(is_staff=True).exists():
            return
        password = secrets.token_urlsafe(18)
        owner = owner_ensure(name="operations")
        staff_create(username="admin", password=password, owner=owner, superuser=True)
        write_secret(home / "admin.password", password)
        self._show("staff user 'admin', password", password, home / "admin.password")

    @transaction.atomic
    def _ensure_key(self, home: Path, *, owner: str, name: str, scopes: frozenset[Scope]) -> None:
        tenant = owner_ensure(name=owner)
        if ApiKey.objects.filter(owner=tenant, name=name).exists():
            return
        _, secret = key_create(owner=tenant, name=name, scopes=scopes)
        write_secret(home / f"{name}.key", secret)
        self._show(f"API key '{name}'", secret, home / f"{name}.key")

    def _show(self, what: str, secret: str, path: Path) -> None:
        self.stdout.write(f"{what}: {secret}  (shown once; kept in {path})")


def write_secret(path: Path, secret: str) -> None:
    """Replace the file whole; nobody else can read it at any moment. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret + "\n")
    draft.replace(path)
