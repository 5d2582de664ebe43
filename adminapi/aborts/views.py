"""REST calls that stop requests, and their receipts. Thin: validate, call one service, answer.

A call may ask to wait for its receipt (`Prefer: wait`); that holds no thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import caller_of
from accounts.callers import Caller
from accounts.permissions import CanAbort, CanReadAborts
from adminapi.aborts.documents import ReceiptListSerializer, ReceiptSerializer
from adminapi.aborts.orders import AbortOrder, idempotency_key, wait_seconds
from adminapi.aborts.serializers import AbortRequestsSerializer, ReceiptQuerySerializer
from adminapi.aborts.stops import stop
from adminapi.pages import PageQuerySerializer, page
from adminapi.queries import query_fields
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.database import in_database
from gateway.waiting import settled
from ledger.models import Abort
from ledger.push import group_of
from ledger.selectors import abort_get, abort_receipt, aborts_visible

# Fifty receipts with a thousand targets each would be no page.
TARGETS_IN_LIST = 20
PREFER = OpenApiParameter(
    "Prefer",
    location=OpenApiParameter.HEADER,
    description="`wait=<seconds, at most 60>`: answer 200 once all targets are settled.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    location=OpenApiParameter.HEADER,
    description="The same key with the same body gives the same abort; with another body: 409.",
)
ANSWERS = {202: ReceiptSerializer, 200: ReceiptSerializer}


@dataclass(frozen=True, slots=True)
class Ordered:
    """An abort that is recorded, and the receipt as it stands. `wait` is seconds."""

    caller: Caller
    abort_id: str
    receipt: dict[str, Any]
    wait: float | None
    dry_run: bool = False


def carry_out(request: Request, order: AbortOrder) -> Ordered:
    caller, wait = caller_of(request), wait_seconds(request.headers.get("Prefer"))
    abort = stop(caller, order)
    return Ordered(caller, abort.pk, abort_receipt(abort=abort), wait, order.dry_run)


async def answer(ordered: Ordered) -> HttpResponse:
    """202 with the receipt as it is, or 200 with the settled one if the client waits for that."""
    receipt, status = ordered.receipt, 202
    if ordered.dry_run:
        return json_response(receipt)
    if ordered.wait is not None:
        is_settled = await settled(
            group_of("abort", ordered.abort_id), lambda: _is_done(ordered), seconds=ordered.wait
        )
        receipt = await in_database(_receipt, ordered.caller, ordered.abort_id)
        status = 200 if is_settled else 202
    response = json_response(receipt, status=status)
    response["Location"] = reverse("abort", args=[ordered.abort_id])
    return response


async def _is_done(ordered: Ordered) -> bool:
    return await in_database(
        Abort.objects.filter(pk=ordered.abort_id, state=Abort.Status.DONE).exists
    )


def _receipt(caller: Caller, abort_id: str, after: int = -1) -> dict[str, Any]:
    return abort_receipt(abort=abort_get(caller=caller, abort_id=abort_id), after=after)


class AbortRequestsView(AsyncAPIView[Ordered]):
    """Answers at once; the engines stop the work within a step. What is unclear stops nothing."""

    permission_classes = [CanAbort]

    def prepare(self, request: Request) -> Ordered:
        body = AbortRequestsSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        return carry_out(request, body.order(idempotency_key=key))

    @extend_schema(
        operation_id="abort_requests",
        summary="Stop requests: some, all, or those that a filter finds",
        parameters=[IDEMPOTENCY_KEY, PREFER],
        request=AbortRequestsSerializer,
        responses=ANSWERS,
    )
    async def post(self, request: Request, ordered: Ordered) -> HttpResponse:  # noqa: ARG002 (the base's signature)
        return await answer(ordered)


class AbortListView(APIView):
    """One's own; with `operate` everyone's. Each with its first targets only."""

    permission_classes = [CanReadAborts]

    @extend_schema(
        operation_id="list_aborts",
        summary="Receipts, newest first",
        parameters=[PageQuerySerializer],
        responses=ReceiptListSerializer,
    )
    def get(self, request: Request) -> Response:
        query = PageQuerySerializer(data=query_fields(request.query_params))
        query.is_valid(raise_exception=True)
        found = page(
            aborts_visible(caller=caller_of(request)),
            time_field="created_at",
            cursor=query.cursor_given,
            limit=query.validated_data["limit"],
        )
        return Response(found.json(lambda abort: abort_receipt(abort=abort, limit=TARGETS_IN_LIST)))


class AbortView(APIView):
    """One outcome per target. `aborted` is written only after slot and blocks were released."""

    permission_classes = [CanReadAborts]

    @extend_schema(
        operation_id="get_abort",
        summary="The receipt of an abort",
        parameters=[ReceiptQuerySerializer],
        responses=ReceiptSerializer,
    )
    def get(self, request: Request, abort_id: str) -> Response:
        query = ReceiptQuerySerializer(data=query_fields(request.query_params))
        query.is_valid(raise_exception=True)
        after = query.validated_data["targets_after"]
        return Response(_receipt(caller_of(request), abort_id, after))
