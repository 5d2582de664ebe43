"""The linear layers' seam: y = x W^T + b, plain or with weights packed for this CPU.

Packing reorders a weight once so that each later product reads it in order; it changes no value.
The operators for it are torch's own but not public, so they are probed, never assumed. A further
kind of linear (integer weights) is one more class here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch.nn import functional

_BATCH_HINT = 32


class Linear(Protocol):
    """x [T, in] to y [T, out], same type."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


LinearMaker: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], Linear]


class PlainLinear:
    """The weight as it is; any device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """The weight in oneDNN's blocked order; CPU only."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def linear_maker(*, device: torch.device, dtype: torch.dtype) -> LinearMaker:
    """The quickest kind of linear that works here."""
    return PackedLinear if packing_works(device=device, dtype=dtype) else PlainLinear


def packing_works(*, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed products run here and agree with plain ones; tried on a small case."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    weight = torch.linspace(-1.0, 1.0, 64 * 32).view(64, 32).to(dtype)
    x = torch.linspace(-1.0, 1.0, 3 * 32).view(3, 32).to(dtype)
    try:
        found = PackedLinear(weight)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # this build or this CPU lacks the operators: the plain product serves
    return torch.allclose(found.float(), PlainLinear(weight)(x).float(), rtol=0.05, atol=0.05)
