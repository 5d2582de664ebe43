"""Where and how a model computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in which type a model computes. `max_tokens` bounds the positions it can see."""

    dtype: torch.dtype
    device: torch.device
    max_tokens: int
