"""Websocket routes of the ledger."""

from __future__ import annotations

from django.urls import path

from ledger.consumers import AbortConsumer, RequestConsumer

websocket_urlpatterns = [
    path("ws/requests/<str:any_id>/", RequestConsumer.as_asgi()),
    path("ws/aborts/<str:any_id>/", AbortConsumer.as_asgi()),
]
