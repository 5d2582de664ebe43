"""Who may call, in the console: owners, API keys, users and groups.

A key's secret is shown once, on the page that answers its creation, and kept nowhere.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from rest_framework_api_key.models import APIKey as UnusedKey
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from accounts.callers import ABORT_REQUESTS, CONTROL_REPLICAS, Scope
from accounts.models import ApiKey, Membership, Owner
from accounts.services import key_create, key_revoke
from adminapi.console.base import action, display

admin.site.unregister(UnusedKey)
admin.site.unregister(User)
admin.site.unregister(Group)

KEY_TONES = {"active": "success", "revoked": "danger", "expired": "warning"}


@admin.register(Owner)
class OwnerAdmin(ModelAdmin):  # type: ignore[misc]  # the theme has no types
    list_display = ["name", "created_at"]
    search_fields = ["name"]
    readonly_fields = ["created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Owner | None = None) -> list[str]:  # noqa: ARG002
        """A name is what filters, quotas and records show: it stays."""
        return ["name", "created_at"] if obj is not None else ["created_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Owner | None = None) -> bool:  # noqa: ARG002
        return False


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class takes none
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="infer: submit, see and stop one's own. operate: see and stop all; replicas.",
    )

    # Set per request by `KeyAdmin.get_form`.
    may_give_operate = False

    class Meta:
        model = ApiKey
        fields = ["owner", "name", "scopes", "max_priority"]

    def clean_scopes(self) -> list[str]:
        """Nobody gives a key more than they may do themselves."""
        scopes: list[str] = self.cleaned_data["scopes"]
        if Scope.OPERATE in scopes and not self.may_give_operate:
            raise forms.ValidationError("You may not operate, so a key of yours may not either.")
        return scopes


@admin.register(ApiKey)
class KeyAdmin(ModelAdmin):  # type: ignore[misc]  # the theme has no types
    """Made here and revoked here, never changed: the list shows all that is kept."""

    form = KeyForm
    list_display = [
        "name", "owner", "prefix", "scope_labels", "status", "max_priority", "created",
        "last_used_at",
    ]  # fmt: skip
    list_display_links = None
    list_select_related = ["owner"]
    list_filter = ["revoked", "owner"]
    search_fields = ["name", "prefix", "owner__name"]
    actions = ["revoke_selected"]

    def get_form(
        self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:  # type: ignore[type-arg]  # Django's class takes none
        form: type[KeyForm] = super().get_form(request, obj, change, **kwargs)
        form.may_give_operate = request.user.has_perms([ABORT_REQUESTS, CONTROL_REPLICAS])
        return form

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """For the list and its action; a single key has no page."""
        return obj is None and super().has_change_permission(request, obj)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return obj is None and super().has_view_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002
        return False

    @display("scopes", label=True)
    def scope_labels(self, key: ApiKey) -> list[str]:
        return list(key.scopes)

    @display("status", label=KEY_TONES)
    def status(self, key: ApiKey) -> str:
        if key.revoked:
            return "revoked"
        return "expired" if key.has_expired else "active"

    def save_model(self, request: HttpRequest, obj: ApiKey, form: forms.Form, change: bool) -> None:  # noqa: ARG002
        """The service makes the key; the form's object takes its identity for the log entry."""
        made, obj.secret_shown_once = key_create(
            owner=obj.owner,
            name=obj.name,
            scopes=[Scope(scope) for scope in form.cleaned_data["scopes"]],
            max_priority=obj.max_priority,
        )
        obj.pk, obj.prefix, obj.created = made.pk, made.prefix, made.created

    def response_add(
        self,
        request: HttpRequest,
        obj: ApiKey,
        post_url_continue: str | None = None,  # noqa: ARG002
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "media": self.media,
            "key": obj,
            "secret": obj.secret_shown_once,
        }
        return TemplateResponse(
            request,
            "adminapi/key_created.html",
            context,
            headers={"Cache-Control": "no-store"},
        )

    @action("Revoke selected keys", permissions=["change"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            key_revoke(key=key)
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"Revoked: {len(queryset)}.", messages.SUCCESS)


class MembershipInline(TabularInline):  # type: ignore[misc]  # the theme has no types
    model = Membership
    extra = 0
    max_num = 1


@admin.register(User)
class StaffAdmin(UserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]  # the theme has no types
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    inlines = [MembershipInline]

    def get_inlines(self, request: HttpRequest, obj: User | None) -> list[Any]:
        """A user that does not exist yet belongs to nobody yet."""
        return list(super().get_inlines(request, obj)) if obj is not None else []


@admin.register(Group)
class StaffGroupAdmin(GroupAdmin, ModelAdmin):  # type: ignore[misc]  # the theme has no types
    pass
