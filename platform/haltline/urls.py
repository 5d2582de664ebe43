"""Every route of the server: the inference API, the operators' API, the console, the schema."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import URLPattern, URLResolver, include, path
from django.views import defaults
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.views import (
    SpectacularJSONAPIView,
    SpectacularSwaggerView,
    SpectacularYAMLAPIView,
)

from gateway.api import errors
from haltline.middleware import is_console


def to_console(_request: HttpRequest) -> HttpResponse:
    return redirect("admin:index")


urlpatterns: list[URLPattern | URLResolver] = [
    path("", to_console),
    path("", include("gateway.urls")),
    path("", include("adminapi.urls")),
    path("admin/", admin.site.urls),
    path("schema/", SpectacularSwaggerView.as_view(url_name="schema"), name="schema-page"),
    path(
        "schema/openapi.json",
        # Plain application/json unless the other name of it is asked for.
        SpectacularJSONAPIView.as_view(
            renderer_classes=[OpenApiJsonRenderer2, OpenApiJsonRenderer]
        ),
        name="schema",
    ),
    path("schema/openapi.yaml", SpectacularYAMLAPIView.as_view(), name="schema-yaml"),
]


def handler400(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _either(request, defaults.bad_request, errors.handler400, exception)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _either(request, defaults.permission_denied, errors.handler403, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return _either(request, defaults.page_not_found, errors.handler404, exception)


def handler500(request: HttpRequest) -> HttpResponseBase:
    return _either(request, defaults.server_error, errors.handler500)


def _either(request: HttpRequest, page: Any, answer: Any, *rest: Exception) -> HttpResponseBase:
    """A page for the console, JSON for everyone else."""
    chosen = page if is_console(request.path_info) else answer
    response: HttpResponseBase = chosen(request, *rest)
    return response
