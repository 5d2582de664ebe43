"""Root-mean-square normalisation, computed in float32 whatever the type of its input."""

from __future__ import annotations

import torch


class RmsNorm:
    """x [..., size] scaled to unit mean square, times a weight [size]."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return self._weight * (wide * scale).to(x.dtype)
