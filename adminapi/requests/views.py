"""The record over REST: requests, their numbered events, and the calls that stop one of them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import caller_of
from accounts.permissions import CanAbort, CanRead
from adminapi.aborts.orders import AbortOrder
from adminapi.aborts.serializers import AbortOneSerializer
from adminapi.aborts.views import ANSWERS, PREFER, Ordered, answer, carry_out
from adminapi.pages import page
from adminapi.queries import query_fields
from adminapi.requests.documents import (
    EventListSerializer,
    RequestDetailSerializer,
    RequestListSerializer,
)
from adminapi.requests.serializers import EventQuerySerializer, RequestQuerySerializer
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from ledger.representations import request_detail_json, request_event_json, request_json
from ledger.selectors import choices_of, request_get, requests_visible, transitions_of

METADATA = OpenApiParameter(
    "metadata", OpenApiTypes.OBJECT, style="deepObject", description="`metadata[job]=7`"
)


class RequestListView(APIView):
    """One's own; with `operate` everyone's. All filters that are given must apply."""

    permission_classes = [CanRead]

    @extend_schema(
        operation_id="list_requests",
        summary="Requests, newest first",
        parameters=[RequestQuerySerializer, METADATA],
        responses=RequestListSerializer,
    )
    def get(self, request: Request) -> Response:
        query = RequestQuerySerializer(data=query_fields(request.query_params))
        query.is_valid(raise_exception=True)
        found = page(
            requests_visible(caller=caller_of(request), filters=query.filters()),
            time_field="received_at",
            cursor=query.cursor_given,
            limit=query.validated_data["limit"],
        )
        return Response(found.json(request_json))


def stop_one(request: Request, any_id: str) -> Ordered:
    """Raises `NotFoundError` for what the caller may not see."""
    body = AbortOneSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    row = request_get(caller=caller_of(request), any_id=any_id)
    order = AbortOrder(ids=[row.pk], reason=body.validated_data.get("reason") or None)
    return carry_out(request, order)


class RequestView(AsyncAPIView[Any]):
    """The record under any of its ids, and the way to stop the request."""

    def get_permissions(self) -> list[BasePermission]:
        return [CanAbort() if self.request.method == "DELETE" else CanRead()]

    def prepare(self, request: Request) -> Any:
        any_id: str = self.kwargs["request_id"]
        if request.method == "DELETE":
            return stop_one(request, any_id)
        row = request_get(caller=caller_of(request), any_id=any_id)
        keeps_content = settings.HALTLINE_RETENTION_DAYS > 0
        return request_detail_json(row, choices_of(request_id=row.pk), content=keeps_content)

    @extend_schema(
        operation_id="get_request",
        summary="The record of a request, by any of its ids",
        responses=RequestDetailSerializer,
    )
    async def get(self, request: Request, record: dict[str, Any], request_id: str) -> HttpResponse:  # noqa: ARG002 (the base's signature)
        return json_response(record)

    @extend_schema(
        operation_id="delete_request",
        summary="Stop a request",
        parameters=[PREFER],
        responses=ANSWERS,
    )
    async def delete(self, request: Request, ordered: Ordered, request_id: str) -> HttpResponse:  # noqa: ARG002
        return await answer(ordered)


class RequestCancelView(AsyncAPIView[Ordered]):
    """The receipt tells what became of it; one that had ended keeps its end."""

    permission_classes = [CanAbort]

    def prepare(self, request: Request) -> Ordered:
        return stop_one(request, self.kwargs["request_id"])

    @extend_schema(
        operation_id="cancel_request",
        summary="Stop a request; safe to repeat",
        parameters=[PREFER],
        request=AbortOneSerializer,
        responses=ANSWERS,
    )
    async def post(self, request: Request, ordered: Ordered, request_id: str) -> HttpResponse:  # noqa: ARG002 (the base's signature)
        return await answer(ordered)


class RequestEventsView(APIView):
    """Numbered from 1 without a gap."""

    permission_classes = [CanRead]

    @extend_schema(
        operation_id="list_request_events",
        summary="The numbered transitions of a request, oldest first",
        parameters=[EventQuerySerializer],
        responses=EventListSerializer,
    )
    def get(self, request: Request, request_id: str) -> Response:
        query = EventQuerySerializer(data=query_fields(request.query_params))
        query.is_valid(raise_exception=True)
        after, limit = query.validated_data["after"], query.validated_data["limit"]
        row = request_get(caller=caller_of(request), any_id=request_id)
        found = list(transitions_of(request_id=row.pk, after=after)[: limit + 1])
        return Response(
            {
                "object": "list",
                "data": [request_event_json(transition) for transition in found[:limit]],
                "has_more": len(found) > limit,
            }
        )
