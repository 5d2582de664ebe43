"""What all pages of the console share: records that nobody edits, labels, links, times.

Permissions are Django's; this only narrows them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, cast

from django.db.models import Model
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold import decorators
from unfold.admin import ModelAdmin

from adminapi.console.timeline import duration

Method = TypeVar("Method", bound=Callable[..., Any])


def display(
    description: str, *, ordering: str | None = None, label: bool | dict[str, str] | None = None
) -> Callable[[Method], Method]:
    """The theme's decorator of a column, with types. `label`: tones by value."""
    found = decorators.display(description=description, ordering=ordering, label=label)
    return cast("Callable[[Method], Method]", found)


def action(description: str, *, permissions: list[str]) -> Callable[[Method], Method]:
    """The theme's decorator of an action, with types."""
    found = decorators.action(description=description, permissions=permissions)
    return cast("Callable[[Method], Method]", found)


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]  # the theme has no types
    """Rows that only services write: they can be looked at, never added, changed or deleted."""

    actions_on_top = True
    show_full_result_count = False
    compressed_fields = False

    class Media:
        css = {"all": ["adminapi/console.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 (Django's signature)
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002
        return False


def page_url(row: Model) -> str:
    """The page of a row in the console."""
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def link(row: Model | None, text: str | None = None) -> SafeString | str:
    if row is None:
        return "-"
    return format_html('<a class="hl-link" href="{}">{}</a>', page_url(row), text or str(row.pk))


def words(value: Any) -> str:
    """`client_disconnected` as a person reads it."""
    return str(value).replace("_", " ")


def label(value: str | None, *, tones: dict[str, str]) -> tuple[str, str] | str:
    """For the theme's `display(label=…)`: (key of its tone, text)."""
    if not value:
        return ""
    return (value, words(value)) if value in tones else words(value)


def age(since: datetime | None, until: datetime | None = None) -> str:
    if since is None:
        return "-"
    return duration(((until or timezone.now()) - since).total_seconds())


def label_html(value: str, *, tones: dict[str, str]) -> SafeString:
    """The same label where the theme does not draw one itself: in the rows of an inline."""
    if not value:
        return format_html("{}", "-")
    context = {"text": words(value), "type": tones.get(value, "default"), "size": "md"}
    return render_to_string("unfold/helpers/label.html", context)
