"""The operators' REST routes."""

from __future__ import annotations

from django.urls import path

from adminapi.aborts.resuming import ResumeView
from adminapi.aborts.views import AbortListView, AbortRequestsView, AbortView
from adminapi.replicas.views import ReplicaListView
from adminapi.requests.views import (
    RequestCancelView,
    RequestEventsView,
    RequestListView,
    RequestView,
)

urlpatterns = [
    path("v1/abort_requests", AbortRequestsView.as_view(), name="abort_requests"),
    path("v1/aborts", AbortListView.as_view(), name="aborts"),
    path("v1/aborts/<str:abort_id>", AbortView.as_view(), name="abort"),
    path("v1/requests", RequestListView.as_view(), name="requests"),
    path("v1/requests/<str:request_id>", RequestView.as_view(), name="request"),
    path("v1/requests/<str:request_id>/cancel", RequestCancelView.as_view(), name="request_cancel"),
    path("v1/requests/<str:request_id>/events", RequestEventsView.as_view(), name="request_events"),
    path("resume", ResumeView.as_view(), name="resume"),
    path("v1/replicas", ReplicaListView.as_view(), name="replicas"),
]
