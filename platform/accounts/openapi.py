"""How the schema names the ways to say who is calling; found by drf-spectacular once imported."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its metaclass hook
    target_class = "accounts.authentication.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002 (the base's signature)
        return {"type": "http", "scheme": "bearer", "description": "An API key."}


class StaffSessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "accounts.authentication.StaffSessionAuthentication"
    name = "staff session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
