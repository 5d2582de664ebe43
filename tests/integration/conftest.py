"""Integration tests run parts together over the real database and the real broker."""

from __future__ import annotations
