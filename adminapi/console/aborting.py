"""The console's way to stop requests: a page that says what would stop and asks for the reason.

It goes through the ledger's own service, as the REST interface does, with cause `operator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextareaWidget

from accounts.authentication import caller_of_user
from adminapi.aborts.orders import AbortOrder
from adminapi.aborts.serializers import LONGEST_REASON, MOST_IDS
from adminapi.aborts.stops import stop
from adminapi.console.base import age, link, page_url, words
from adminapi.console.tones import STATE_TONES
from inference.generation import AbortCause
from ledger.models import LIVE_STATES, Abort, InferenceRequest

SHOWN = 20
URL_NAME = "ledger_inferencerequest_abort"


class AbortForm(forms.Form):
    """`ids` are internal ids, separated by spaces: one field, however many there are."""

    ids = forms.CharField(widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=LONGEST_REASON,
        widget=UnfoldAdminTextareaWidget(
            attrs={"rows": 3, "autofocus": True, "placeholder": "Why are these stopped?"}
        ),
    )

    def clean_ids(self) -> list[str]:
        return str(self.cleaned_data["ids"]).split()


def abort_url() -> str:
    return reverse(f"admin:{URL_NAME}")


def abort_view(request: HttpRequest, model_admin: ModelAdmin) -> HttpResponse:
    """GET asks about `?ids=`; POST of the form stops them and shows the receipt."""
    if not model_admin.has_abort_permission(request):
        raise PermissionDenied
    if request.method != "POST":
        ids = request.GET.get("ids", "").split()[:MOST_IDS]
        return confirm(request, model_admin, InferenceRequest.objects.filter(pk__in=ids))
    form = AbortForm(request.POST)
    if form.is_valid():
        return _carry_out(request, form.cleaned_data["ids"], form.cleaned_data["reason"])
    ids = str(form.data.get("ids", "")).split()
    return confirm(request, model_admin, InferenceRequest.objects.filter(pk__in=ids), form=form)


def confirm(
    request: HttpRequest,
    model_admin: ModelAdmin,
    queryset: QuerySet[InferenceRequest],
    form: AbortForm | None = None,
) -> HttpResponse:
    """The page that asks. Only what is live is offered; what ends meanwhile, the receipt tells."""
    live = queryset.filter(state__in=LIVE_STATES).order_by("received_at")
    ids = list(live.values_list("pk", flat=True))
    context = {
        **model_admin.admin_site.each_context(request),
        "title": "Abort requests",
        "opts": model_admin.opts,
        "media": model_admin.media,
        "action_url": abort_url(),
        "form": form or AbortForm(initial={"ids": " ".join(ids)}),
        "live_count": len(ids),
        "ended_count": queryset.exclude(state__in=LIVE_STATES).count(),
        "rows": [_line(row) for row in _some(ids)],
        "more_count": max(0, len(ids) - SHOWN),
    }
    return TemplateResponse(request, "adminapi/abort_confirm.html", context)


def _some(ids: list[str]) -> QuerySet[InferenceRequest]:
    rows = InferenceRequest.objects.select_related("owner").defer("prompt", "params")
    return rows.filter(pk__in=ids[:SHOWN]).order_by("received_at")


def _line(row: InferenceRequest) -> dict[str, Any]:
    return {
        "link": link(row),
        "state": words(row.state),
        "tone": STATE_TONES[row.state],
        "owner": row.owner.name,
        "model": row.model,
        "tokens": row.output_token_count,
        "age": age(row.received_at),
    }


def _carry_out(request: HttpRequest, ids: Sequence[str], reason: str) -> HttpResponse:
    caller = caller_of_user(request.user)  # type: ignore[arg-type]  # the admin let in staff only
    aborts = [
        stop(caller, AbortOrder(ids=part, reason=reason), cause=AbortCause.OPERATOR)
        for part in _parts(ids, MOST_IDS)
    ]
    messages.success(request, f"Asked to stop: {len(ids)}.")
    return HttpResponseRedirect(_where_to_look(aborts))


def _where_to_look(aborts: list[Abort]) -> str:
    return page_url(aborts[0]) if len(aborts) == 1 else reverse("admin:ledger_abort_changelist")


def _parts(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(ids)
    while part := list(islice(rest, size)):
        yield part
