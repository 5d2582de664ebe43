"""Draws one token per row from unnormalised weights, by inverting the cumulative sum.

Two levels, blocks and then within a block, so that no pass over the vocabulary is longer than it
must be, and one uniform number per row decides. Entries are taken in the vocabulary's order, so
rounding that differs between batches moves a boundary by a rounding error and no more.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_BLOCK = 256


def drawn(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Indices [R] drawn in proportion to `weights` [R, V] by `uniforms` [R] in [0, 1), float64.

    Each row needs a positive, finite sum. An entry of weight 0 is never drawn.
    """
    rows = weights.shape[0]
    padded = functional.pad(weights, (0, -weights.shape[1] % _BLOCK))
    blocks = padded.view(rows, -1, _BLOCK)
    sums = blocks.sum(-1).double()
    ends = sums.cumsum(-1)
    targets = uniforms[:, None] * ends[:, -1:]
    block = _first_above(ends, targets)
    inner = blocks[torch.arange(rows, device=weights.device), block[:, 0]].double().cumsum(-1)
    left = targets - (ends - sums).gather(-1, block)
    return (block * _BLOCK + _first_above(inner, left))[:, 0]


def _first_above(ends: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The first place [R, 1] where a running sum [R, n] passes its target [R, 1].

    The target is kept below the last sum, which rounding may have made smaller than it.
    """
    last = ends[:, -1:]
    below = torch.minimum(targets, torch.nextafter(last, torch.zeros_like(last)))
    return (ends <= below).sum(-1, keepdim=True)
