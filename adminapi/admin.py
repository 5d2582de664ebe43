"""Django finds the console here; each page has its own module in `adminapi.console`."""

from __future__ import annotations

from adminapi.console import people, receipts, replicas, requests

__all__ = ("people", "receipts", "replicas", "requests")
