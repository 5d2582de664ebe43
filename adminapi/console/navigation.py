"""The console's sidebar: what the signed-in user may see, in the order an operator asks for it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

_GROUPS: list[tuple[str, list[tuple[str, str, str]]]] = [
    (
        "Operations",
        [
            ("Requests", "stream", "ledger.inferencerequest"),
            ("Aborts", "block", "ledger.abort"),
            ("Replicas", "memory", "ledger.replica"),
        ],
    ),
    (
        "Access",
        [
            ("Owners", "apartment", "accounts.owner"),
            ("API keys", "key", "accounts.apikey"),
            ("Users", "person", "auth.user"),
            ("Groups", "group", "auth.group"),
        ],
    ),
]


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """For the theme's SIDEBAR navigation."""
    return [
        {"title": title, "separator": True, "items": _items(request, entries)}
        for title, entries in _GROUPS
    ]


def _items(request: HttpRequest, entries: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    found = []
    for title, icon, name in entries:
        app_label, model_name = name.split(".")
        if _may_see(request, app_label, model_name):
            url = reverse(f"admin:{app_label}_{model_name}_changelist")
            found.append({"title": title, "icon": icon, "link": url})
    return found


def _may_see(request: HttpRequest, app_label: str, model_name: str) -> bool:
    """A change permission shows the list, too, as everywhere in Django's admin."""
    names = (f"{app_label}.{act}_{model_name}" for act in ("view", "change"))
    return any(request.user.has_perm(name) for name in names)
