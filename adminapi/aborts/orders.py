"""What a caller asked to stop, as validated from HTTP: a plain value for the ledger's service.

Knows the headers and the body of the abort calls; does not know who may stop what.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequestError

LONGEST_WAIT = 60.0
LONGEST_KEY = 255
_WAIT = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOrder:
    """One selector is set: `ids`, `everything` or `filters`. `tombstone` is seconds."""

    ids: list[str] | None = None
    everything: bool = False
    filters: dict[str, Any] | None = None
    reason: str | None = None
    dry_run: bool = False
    tombstone: float | None = None
    fence: bool = False
    idempotency_key: str | None = None
    body_digest: str | None = None


def body_digest(body: Any) -> str:
    """SHA-256 of a JSON body, whatever the order of its fields."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def idempotency_key(header: str | None) -> str | None:
    """Raises `InvalidRequestError` for a key that is blank, too long or not printable ASCII."""
    if header is None:
        return None
    if not header.strip() or len(header) > LONGEST_KEY or not _printable(header):
        raise InvalidRequestError(
            f"Idempotency-Key must be 1 to {LONGEST_KEY} printable ASCII characters.",
            param="Idempotency-Key",
        )
    return header


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def wait_seconds(header: str | None) -> float | None:
    """The `wait` of a Prefer header, None without one. Other preferences are not ours to judge.

    Raises `InvalidRequestError` where it is no number of seconds up to `LONGEST_WAIT`.
    """
    for preference in (header or "").split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return _wait(value.strip().strip('"'))
    return None


def _wait(value: str) -> float:
    if not _WAIT.fullmatch(value) or float(value) > LONGEST_WAIT:
        raise InvalidRequestError(
            f"Prefer: wait must be a number of seconds, at most {LONGEST_WAIT:g}.", param="Prefer"
        )
    return float(value)
