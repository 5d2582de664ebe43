"""What meets new work at the door: tombstones of ids, and fences against everything."""

from __future__ import annotations

from django.db import models

from accounts.models import Owner
from ledger.models.aborts import Abort


class Tombstone(models.Model):
    """An id that an abort named before any request bore it.

    Until `expires_at`, whoever bears it within that owner is aborted on arrival. Several may stand
    for one id; any of them counts.
    """

    owner = models.ForeignKey(Owner, on_delete=models.CASCADE, related_name="+", db_index=False)
    client_id = models.CharField(max_length=128)
    abort = models.ForeignKey(Abort, on_delete=models.CASCADE, related_name="tombstones")
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(fields=["owner", "client_id", "expires_at"], name="tombstone_of_id"),
            models.Index(fields=["expires_at"], name="tombstone_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.client_id} until {self.expires_at:%H:%M:%S}"


class Fence(models.Model):
    """Raised by an `abort_all`: no new work is admitted while one stands (`lifted_at` null)."""

    abort = models.OneToOneField(Abort, on_delete=models.CASCADE, related_name="fence")
    raised_at = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(
                fields=["raised_at"],
                name="fence_standing",
                condition=models.Q(lifted_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"fence of {self.abort_id}"
