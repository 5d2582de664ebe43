"""Replicas over REST: which there are and how loaded each is."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.permissions import CanSeeReplicas
from ledger.models import Replica
from ledger.representations import replica_json
from ledger.selectors import replicas_all


class ReplicaSerializer(serializers.Serializer[None]):
    """`load` is what the replica last said of itself."""

    id = serializers.CharField()
    object = serializers.CharField(default="replica")
    state = serializers.ChoiceField(choices=Replica.State.choices)
    model = serializers.CharField()
    epoch = serializers.CharField()
    last_beat_at = serializers.DateTimeField()
    load = serializers.DictField()


class ReplicaListSerializer(serializers.Serializer[None]):
    object = serializers.CharField(default="list")
    data = ReplicaSerializer(many=True)  # type: ignore[assignment]  # a field


class ReplicaListView(APIView):
    """Load and state as their last heartbeats told them."""

    permission_classes = [CanSeeReplicas]

    @extend_schema(
        operation_id="list_replicas",
        summary="Replicas with their state and load",
        responses=ReplicaListSerializer,
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002 (the base's signature)
        return Response({"object": "list", "data": [replica_json(row) for row in replicas_all()]})
