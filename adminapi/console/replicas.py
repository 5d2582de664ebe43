"""Replicas in the console: which engines there are and how loaded each is."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from adminapi.console.base import ReadOnlyAdmin, age, display, label
from adminapi.console.timeline import duration
from adminapi.console.tones import REPLICA_TONES
from ledger.models import Replica


@admin.register(Replica)
class ReplicaAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "state_label", "model", "running", "waiting", "kv_use", "last_beat", "uptime",
    ]  # fmt: skip
    list_filter = ["state", "model"]
    fields = [
        "id", "state", "model", "epoch", "bus_url", "running", "waiting", "kv_use", "last_beat",
        "last_step", "uptime",
    ]  # fmt: skip
    readonly_fields = ["running", "waiting", "kv_use", "last_beat", "last_step", "uptime"]

    @display("state", ordering="state", label=REPLICA_TONES)
    def state_label(self, row: Replica) -> tuple[str, str] | str:
        return label(row.state, tones=REPLICA_TONES)

    @display("running")
    def running(self, row: Replica) -> str:
        return f"{_load(row, 'running')} of {_load(row, 'total_slots')}"

    @display("waiting")
    def waiting(self, row: Replica) -> str:
        return str(_load(row, "waiting"))

    @display("KV blocks in use")
    def kv_use(self, row: Replica) -> str:
        total, free = _load(row, "total_blocks"), _load(row, "free_blocks")
        if not isinstance(total, int) or not isinstance(free, int) or total == 0:
            return "-"
        return f"{total - free} of {total} ({100 * (total - free) / total:.0f} %)"

    @display("last heartbeat", ordering="-last_beat_at")
    def last_beat(self, row: Replica) -> str:
        return f"{age(row.last_beat_at)} ago"

    @display("last step took")
    def last_step(self, row: Replica) -> str:
        return duration(row.load.get("last_step_seconds"))

    @display("up for")
    def uptime(self, row: Replica) -> str:
        return duration(row.load.get("uptime_seconds"))


def _load(row: Replica, name: str) -> Any:
    return row.load.get(name, "-")
