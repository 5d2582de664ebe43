"""Products with integer weights by torch's own kernels, for machines without the native ones.

Weights are rounded to signed bytes, one scale for each output; activations while they pass, one
scale for each row, so that a row's result does not depend on its batch. The operators are old and
on their way out of torch: they are probed, never assumed. CPU only, float32 in and out.
"""

from __future__ import annotations

import warnings

import torch

from inference.engine.layers.linear import Linear, LinearMaker, linear_maker

_HEAD_RATIO = 16
_CPU = torch.device("cpu")


class Int8Linear:
    """x W^T + b with both rounded to bytes."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.quantized.linear_prepack(_rounded(weight), None)
        self._bias = bias
        ends = torch.zeros(1, weight.shape[1])
        ends[0, :2] = torch.tensor([-1.0, 1.0])
        self._ends = ends

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The operator takes one scale from all rows: a last row makes that the same each time."""
        sizes = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
        rows = torch.cat([x / sizes, self._ends])
        found: torch.Tensor = torch.ops.quantized.linear_dynamic(
            rows, self._packed, reduce_range=False
        )
        found = found[:-1] * sizes
        return found if self._bias is None else found + self._bias


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    scales = weight.abs().amax(1).clamp_min(1e-12).double() / 127
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():  # that it is deprecated is known, and told above
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)


def int8_linear_maker() -> LinearMaker | None:
    """Makes linears of integers where that costs little accuracy; None where there are none.

    What shrinks its input (a down projection) and what gives logits stays in float32: rounding
    hurts most there.
    """
    plain = linear_maker(device=_CPU, dtype=torch.float32)

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        outputs, inputs = weight.shape
        delicate = outputs < inputs or outputs >= _HEAD_RATIO * inputs
        return plain(weight, bias) if delicate or inputs < 2 else Int8Linear(weight, bias)

    return make if int8_works() else None


def int8_works() -> bool:
    """Whether the operators run here and come near to the plain product; tried on a small case."""
    weight = torch.linspace(-1.0, 1.0, 64 * 32).view(64, 32)
    x = torch.linspace(-1.0, 1.0, 3 * 32).view(3, 32)
    try:
        found = Int8Linear(weight)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # this build or this processor lacks them
    return torch.allclose(found, x @ weight.T, rtol=0.05, atol=0.15)
