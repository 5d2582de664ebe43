"""The body of an abort call, validated to the letter: a call that is not clear stops nothing."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from adminapi.aborts.orders import AbortOrder, body_digest
from adminapi.strict import Flag, OneOf, Seconds, StrictSerializer, Text, TextMap
from inference.lifecycle import LIVE, State

MOST_IDS = 1000
LONGEST_ID = 200
LONGEST_REASON = 1000
SHORTEST_TOMBSTONE = 1.0
LONGEST_TOMBSTONE = 300.0
_TOMBSTONE_RANGE = (
    f"A tombstone lasts from {SHORTEST_TOMBSTONE:g} to {LONGEST_TOMBSTONE:g} seconds."
)
OLDEST = 10.0 * 365 * 24 * 3600
SELECTORS = ("req_ids", "request_ids", "abort_all", "filter")
LIVE_STATES = [str(state) for state in State if state in LIVE]


def _ids(help_text: str) -> serializers.ListField:
    return serializers.ListField(
        child=Text(max_length=LONGEST_ID),
        allow_empty=False,
        max_length=MOST_IDS,
        allow_null=True,
        required=False,
        help_text=help_text,
    )


class AbortFilterSerializer(StrictSerializer):
    """All that is given must apply. At least one field."""

    model = Text(required=False, max_length=200)
    owner = Text(required=False, max_length=200, help_text="The owner's name.")
    state = OneOf(choices=LIVE_STATES, required=False)
    older_than = Seconds(
        required=False, min_value=0, max_value=OLDEST, help_text="Seconds since it was received."
    )
    metadata = TextMap(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("An empty filter would stop everything.")
        return attrs


class AbortRequestsSerializer(StrictSerializer):
    """Exactly one of `req_ids` (or `request_ids`), `abort_all` and `filter`."""

    req_ids = _ids("Internal ids, response ids or the client's own ids.")
    request_ids = _ids("Another name of `req_ids`.")
    abort_all = Flag(
        required=False,
        allow_null=True,
        help_text="Everything live: everyone's with `operate`, otherwise one's own.",
    )
    filter = AbortFilterSerializer(required=False, allow_null=True)
    reason = Text(required=False, allow_null=True, allow_blank=True, max_length=LONGEST_REASON)
    dry_run = Flag(required=False, allow_null=True, help_text="Count the targets, stop nothing.")
    tombstone = Seconds(
        required=False,
        allow_null=True,
        min_value=SHORTEST_TOMBSTONE,
        max_value=LONGEST_TOMBSTONE,
        error_messages={"min_value": _TOMBSTONE_RANGE, "max_value": _TOMBSTONE_RANGE},
        help_text="Seconds for which an id that is unknown now stays aborted.",
    )
    fence = Flag(
        required=False,
        allow_null=True,
        help_text="With `abort_all`: refuse new work until it is resumed.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = [name for name in SELECTORS if attrs.get(name) not in (None, False)]
        if len(given) != 1:
            said = " and ".join(given) if given else "none"
            raise serializers.ValidationError(
                f"Give exactly one of req_ids, abort_all and filter; this has {said}."
            )
        _check_companions(attrs, selector=given[0])
        return attrs

    def order(self, *, idempotency_key: str | None = None) -> AbortOrder:
        """What was asked for, once `is_valid` has passed."""
        fields = self.validated_data
        return AbortOrder(
            ids=fields.get("req_ids") or fields.get("request_ids"),
            everything=bool(fields.get("abort_all")),
            filters=fields.get("filter"),
            reason=fields.get("reason") or None,
            dry_run=bool(fields.get("dry_run")),
            tombstone=fields.get("tombstone"),
            fence=bool(fields.get("fence")),
            idempotency_key=idempotency_key,
            body_digest=body_digest(self.initial_data),
        )


def _check_companions(attrs: dict[str, Any], *, selector: str) -> None:
    if attrs.get("fence") and selector != "abort_all":
        raise serializers.ValidationError({"fence": ["A fence goes with abort_all only."]})
    if attrs.get("tombstone") is not None and selector not in {"req_ids", "request_ids"}:
        raise serializers.ValidationError({"tombstone": ["A tombstone goes with ids only."]})


class AbortOneSerializer(StrictSerializer):
    """The optional body of a call that stops one request."""

    reason = Text(required=False, allow_null=True, allow_blank=True, max_length=LONGEST_REASON)


class ReceiptQuerySerializer(StrictSerializer):
    targets_after = serializers.IntegerField(
        required=False,
        min_value=-1,
        max_value=2**31 - 1,
        default=-1,
        help_text="`targets_next` of the page before.",
    )
