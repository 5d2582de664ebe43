"""Who may call: owners, their API keys, and which staff user belongs to which owner.

Keys are kept hashed; the secret is shown once, when the key is made. What a key may do is in
`accounts.callers`; this module knows no requests.
"""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from rest_framework_api_key.models import AbstractAPIKey

from accounts.callers import Scope

name_rule = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", "Letters, digits, '.', '_' and '-' only."
)


def check_scopes(value: object) -> None:
    """A JSON list of known scopes, at least one, each once. Raises `ValidationError`."""
    known = {scope.value for scope in Scope}
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise ValidationError("A list of scopes is needed.")
    if len(set(value)) != len(value) or not set(value) <= known:
        raise ValidationError(f"Scopes are {', '.join(sorted(known))}, each at most once.")


class Owner(models.Model):
    """A tenant: its keys and users see and abort the same work."""

    name = models.CharField(max_length=64, unique=True, validators=[name_rule])
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ApiKey(AbstractAPIKey):  # type: ignore[misc]  # the library has no types
    """A secret that lets a program call. `max_priority` is the highest it may ask for."""

    owner = models.ForeignKey(Owner, on_delete=models.PROTECT, related_name="+")
    scopes = models.JSONField(validators=[check_scopes])
    max_priority = models.IntegerField(default=0)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta(AbstractAPIKey.Meta):  # type: ignore[misc]  # the library has no types
        verbose_name = "API key"
        verbose_name_plural = "API keys"

    def __str__(self) -> str:
        return f"{self.owner.name}/{self.name}"


class Membership(models.Model):
    """The owner whose work a staff user submits and sees without further permissions."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    owner = models.ForeignKey(Owner, on_delete=models.PROTECT, related_name="memberships")

    def __str__(self) -> str:
        return f"{self.user} in {self.owner}"
