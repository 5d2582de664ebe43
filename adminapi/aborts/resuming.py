"""`POST /resume`: admit new work again after an `abort_all` that raised a fence.

It answers in vLLM's shape. It lifts fences and nothing else: what was aborted stays so.
"""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import caller_of
from accounts.permissions import CanControl
from ledger.services import fence_lift


class ResumedSerializer(serializers.Serializer[None]):
    """`fences_lifted` 0: none stood."""

    status = serializers.CharField(default="resumed")
    fences_lifted = serializers.IntegerField()


class ResumeView(APIView):
    """Admit new work again. Safe to repeat."""

    permission_classes = [CanControl]

    @extend_schema(
        operation_id="resume",
        summary="Lift the fence that an abort_all raised",
        request=None,
        responses=ResumedSerializer,
    )
    def post(self, request: Request) -> Response:
        lifted = fence_lift(caller=caller_of(request))
        return Response({"status": "resumed", "fences_lifted": lifted})
