"""The inference API's routes."""

from __future__ import annotations

from django.urls import URLPattern, path

from gateway.api.generation import ChatCompletionsView, CompletionsView
from gateway.api.health import HealthView, LiveView, PingView, ReadyView
from gateway.api.models import DetokenizeView, ModelsView, ModelView, TokenizeView
from gateway.api.responses import ResponseCancelView, ResponsesView, ResponseView

urlpatterns: list[URLPattern] = [
    path("v1/chat/completions", ChatCompletionsView.as_view()),
    path("v1/completions", CompletionsView.as_view()),
    path("v1/responses", ResponsesView.as_view()),
    path("v1/responses/<str:response_id>", ResponseView.as_view()),
    path("v1/responses/<str:response_id>/cancel", ResponseCancelView.as_view()),
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:name>", ModelView.as_view()),
    path("tokenize", TokenizeView.as_view()),
    path("detokenize", DetokenizeView.as_view()),
    path("health/live", LiveView.as_view()),
    path("health/ready", ReadyView.as_view()),
    path("health", HealthView.as_view()),
    path("ping", PingView.as_view()),
]
