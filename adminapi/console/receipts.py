"""Aborts in the console: who stopped what and why, and the receipt with its targets."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.admin import TabularInline

from adminapi.console.base import ReadOnlyAdmin, age, display, label, label_html, link, words
from adminapi.console.request_page import moment
from adminapi.console.tones import ABORT_TONES, CAUSE_TONES, OUTCOME_TONES, STATE_TONES
from ledger.models import Abort, AbortTarget


class TargetInline(TabularInline):  # type: ignore[misc]  # the theme has no types
    model = AbortTarget
    fields = readonly_fields = [
        "target", "outcome_label", "before", "output_token_count", "released", "confirmed",
    ]  # fmt: skip
    ordering = ["position"]
    per_page = 50
    extra = 0
    can_delete = False
    hide_title = True
    verbose_name_plural = "targets"

    def get_queryset(self, request: HttpRequest) -> QuerySet[AbortTarget]:
        found: QuerySet[AbortTarget] = super().get_queryset(request)
        return found.select_related("abort", "request")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 (Django's signature)
        """Who may see the receipt sees its targets."""
        return bool(request.user.has_perm("ledger.view_abort"))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    @display("request")
    def target(self, target: AbortTarget) -> SafeString | str:
        if target.request is None:
            return target.requested_id
        return link(target.request, target.requested_id)

    @display("outcome")
    def outcome_label(self, target: AbortTarget) -> SafeString:
        return label_html(target.outcome, tones=OUTCOME_TONES)

    @display("was")
    def before(self, target: AbortTarget) -> SafeString:
        return label_html(target.state_before, tones=STATE_TONES)

    @display("released after")
    def released(self, target: AbortTarget) -> str:
        return age(target.abort.created_at, target.released_at) if target.released_at else "-"

    @display("confirmed later")
    def confirmed(self, target: AbortTarget) -> str:
        return moment(target.confirmed_at)


@admin.register(Abort)
class AbortAdmin(ReadOnlyAdmin):
    list_display = [
        "short_id", "status_label", "requested_by", "cause_label", "why", "target_count",
        "aborted_count", "created_at", "took",
    ]  # fmt: skip
    list_filter = ["state", "cause", "owner", "created_at"]
    list_per_page = 50
    ordering = ["-created_at", "-id"]
    search_fields = ["id", "requested_by", "reason", "targets__requested_id"]
    search_help_text = "Abort id, who asked, reason or a target's id"
    change_form_template = "adminapi/abort.html"
    inlines = [TargetInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Abort]:
        found: QuerySet[Abort] = super().get_queryset(request)
        return found.annotate(
            targets_all=_count(), targets_aborted=_count(outcome=AbortTarget.Outcome.ABORTED)
        )

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id or "")
        page = receipt_page(row) if row is not None else {}
        context = {"page": page, "title": "Receipt", **(extra_context or {})}
        response: HttpResponse = super().changeform_view(request, object_id, form_url, context)
        return response

    @display("abort", ordering="id")
    def short_id(self, row: Abort) -> str:
        return f"…{row.pk[-12:]}"

    @display("status", ordering="state", label=ABORT_TONES)
    def status_label(self, row: Abort) -> tuple[str, str] | str:
        return label(row.state, tones=ABORT_TONES)

    @display("cause", ordering="cause", label=CAUSE_TONES)
    def cause_label(self, row: Abort) -> tuple[str, str] | str:
        return label(row.cause, tones=CAUSE_TONES)

    @display("reason")
    def why(self, row: Abort) -> str:
        return row.reason if len(row.reason) <= 60 else f"{row.reason[:59]}…"

    @display("targets")
    def target_count(self, row: Abort) -> int:
        return int(row.targets_all)  # type: ignore[attr-defined]  # annotated above

    @display("aborted")
    def aborted_count(self, row: Abort) -> int:
        return int(row.targets_aborted)  # type: ignore[attr-defined]  # annotated above

    @display("took")
    def took(self, row: Abort) -> str:
        return age(row.created_at, row.done_at) if row.done_at else "-"


def _count(**conditions: str) -> Coalesce:
    """Targets of an abort, counted in the same query as the list."""
    targets = AbortTarget.objects.filter(abort=OuterRef("pk"), **conditions).order_by()
    counted = targets.values("abort").annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(counted), 0)


def receipt_page(row: Abort) -> dict[str, Any]:
    counts = dict(row.targets.values_list("outcome").annotate(Count("id")).order_by())
    return {
        "status": words(row.state),
        "status_tone": ABORT_TONES.get(row.state, "default"),
        "selector": json.dumps(row.selector, ensure_ascii=False, indent=2),
        "facts": [
            ("Asked by", row.requested_by),
            ("Cause", words(row.cause)),
            ("Created", moment(row.created_at)),
            ("Done", moment(row.done_at)),
            ("Took", age(row.created_at, row.done_at) if row.done_at else "-"),
            ("Targets", sum(counts.values())),
            *((words(outcome).capitalize(), count) for outcome, count in sorted(counts.items())),
        ],
    }
