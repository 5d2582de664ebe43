"""Requests in the console: the list with its filters and search, and the page of each."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts.callers import ABORT_REQUESTS
from adminapi.console import aborting
from adminapi.console.base import ReadOnlyAdmin, action, age, display, label
from adminapi.console.request_page import request_page
from adminapi.console.tones import CAUSE_TONES, STATE_TONES
from adminapi.requests.causes import CAUSES
from ledger.ids import internal_id
from ledger.models import LIVE_STATES, InferenceRequest
from ledger.representations import request_cause
from ledger.selectors import condition_of
from ledger.specs import RequestFilter


class LifeFilter(SimpleListFilter):
    """Live or ended: the question that an operator asks first."""

    title = "life"
    parameter_name = "life"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 (Django's signature)
        return [("live", "Live"), ("ended", "Ended")]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[InferenceRequest]  # noqa: ARG002
    ) -> QuerySet[InferenceRequest]:  # fmt: skip
        if self.value() == "live":
            return queryset.filter(state__in=LIVE_STATES)
        if self.value() == "ended":
            return queryset.exclude(state__in=LIVE_STATES)
        return queryset


class CauseFilter(SimpleListFilter):
    title = "cause"
    parameter_name = "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 (Django's signature)
        return [(cause, cause.replace("_", " ")) for cause in CAUSES]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[InferenceRequest]  # noqa: ARG002
    ) -> QuerySet[InferenceRequest]:  # fmt: skip
        cause = self.value()
        return queryset.filter(condition_of(RequestFilter(cause=cause))) if cause else queryset


@admin.register(InferenceRequest)
class RequestAdmin(ReadOnlyAdmin):
    list_display = [
        "short_id", "state_label", "owner", "model", "tokens", "age", "cause_label", "replica",
    ]  # fmt: skip
    list_display_links = ["short_id"]
    list_filter = [LifeFilter, "state", CauseFilter, "kind", "owner", "received_at"]
    list_select_related = ["owner"]
    list_per_page = 50
    ordering = ["-received_at", "-id"]
    search_fields = ["id", "client_id"]
    search_help_text = "Request id, response id, client's id, abort id, model or owner"
    actions = ["abort_selected"]
    change_form_template = "adminapi/request.html"

    def has_abort_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(ABORT_REQUESTS) and self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        own = path("abort/", self.admin_site.admin_view(self.abort_view), name=aborting.URL_NAME)
        return [own, *super().get_urls()]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[InferenceRequest], search_term: str  # noqa: ARG002
    ) -> tuple[QuerySet[InferenceRequest], bool]:  # fmt: skip
        """By any id exactly, or by what a client's id, a model or an owner begins with."""
        word = search_term.strip().replace("\x00", "")
        if not word:
            return queryset, False
        exact = Q(pk=internal_id(word) or word) | Q(abort_id=word)
        begins = Q(client_id__startswith=word) | Q(model__startswith=word)
        return queryset.filter(exact | begins | Q(owner__name__startswith=word)), False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id or "")
        page = self._page(request, row) if row is not None else {}
        context = {"page": page, "title": "Request", **(extra_context or {})}
        response: HttpResponse = super().changeform_view(request, object_id, form_url, context)
        return response

    def _page(self, request: HttpRequest, row: InferenceRequest) -> dict[str, Any]:
        may = row.is_live and self.has_abort_permission(request)
        url = f"{aborting.abort_url()}?ids={row.pk}" if may else ""
        return {**request_page(row), "abort_url": url}

    def abort_view(self, request: HttpRequest) -> HttpResponse:
        return aborting.abort_view(request, self)

    @action("Abort selected", permissions=["abort"])
    def abort_selected(
        self, request: HttpRequest, queryset: QuerySet[InferenceRequest]
    ) -> HttpResponse:
        return aborting.confirm(request, self, queryset)

    @display("request", ordering="id")
    def short_id(self, row: InferenceRequest) -> SafeString:
        """The client's own name if there is one; time-ordered ids differ in their ends."""
        name = row.client_id or f"…{row.pk[-12:]}"
        return format_html('<span class="hl-mono" title="{}">{}</span>', row.pk, name)

    @display("state", ordering="state", label=STATE_TONES)
    def state_label(self, row: InferenceRequest) -> tuple[str, str] | str:
        return label(row.state, tones=STATE_TONES)

    @display("tokens", ordering="output_token_count")
    def tokens(self, row: InferenceRequest) -> str:
        return f"{row.prompt_token_count} + {row.output_token_count}"

    @display("age", ordering="-received_at")
    def age(self, row: InferenceRequest) -> str:
        return age(row.received_at, row.finished_at)

    @display("cause", ordering="cause", label=CAUSE_TONES)
    def cause_label(self, row: InferenceRequest) -> tuple[str, str] | str:
        return label(request_cause(row), tones=CAUSE_TONES)
