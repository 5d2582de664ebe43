"""Pages of a list, newest first.

A cursor names the last row seen, so that rows which come meanwhile neither repeat nor hide any.
Knows rows with a time and a text id, nothing else.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework import serializers

from adminapi.strict import StrictSerializer
from inference.errors import InvalidRequestError

Row = TypeVar("Row", bound=Model)

LIMIT = 50
MOST = 1000
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class PageQuerySerializer(StrictSerializer):
    """What every list takes in its query."""

    limit = serializers.IntegerField(required=False, min_value=1, max_value=MOST, default=LIMIT)
    cursor = serializers.CharField(
        required=False, max_length=400, help_text="`next` of the page before."
    )

    @property
    def cursor_given(self) -> str:
        """Of a query that is valid; empty for the first page."""
        found: str = self.validated_data.get("cursor", "")
        return found


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: list[Row]
    next: str | None

    def json(self, shown: Callable[[Row], Any]) -> dict[str, Any]:
        """The answer of a list call; `next` is null on the last page."""
        data = [shown(row) for row in self.rows]
        return {"object": "list", "data": data, "has_more": bool(self.next), "next": self.next}


def page(queryset: QuerySet[Row], *, time_field: str, cursor: str, limit: int) -> Page[Row]:
    """The rows after a cursor. Raises `InvalidRequestError` for a cursor that is none of ours."""
    if cursor:
        at, pk = _decode(cursor)
        queryset = queryset.filter(
            Q(**{f"{time_field}__lt": at}) | Q(**{time_field: at, "pk__lt": pk})
        )
    rows = list(queryset.order_by(f"-{time_field}", "-pk")[: limit + 1])
    more = len(rows) > limit
    rows = rows[:limit]
    return Page(rows, _encode(getattr(rows[-1], time_field), str(rows[-1].pk)) if more else None)


def _encode(at: datetime, pk: str) -> str:
    return base64.urlsafe_b64encode(f"{at.isoformat()} {pk}".encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[datetime, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        moment, _, pk = text.partition(" ")
        at = datetime.fromisoformat(moment)
    except (binascii.Error, ValueError):
        raise _no_cursor() from None
    if at.tzinfo is None or not _ID.fullmatch(pk):
        raise _no_cursor()
    return at, pk


def _no_cursor() -> InvalidRequestError:
    return InvalidRequestError("This cursor is not one that a page gave.", param="cursor")
