"""Rotary position embedding: frequencies for each scaling rule, tables, and the rotation.

Tables and rotation are float32. The rules are those that transformers documents for
`rope_parameters`; the llama3 and yarn formulas follow their papers. Knows no model.
"""

from __future__ import annotations

import math

import torch

from inference.engine.models.config import RopeConfig, RopeKind
from inference.engine.models.errors import CorruptModelError


class RotaryTable:
    """Holds cos and sin [positions, head_dim / 2], float32, for positions 0 up to `length`."""

    def __init__(
        self, rope: RopeConfig, *, head_dim: int, length: int, device: torch.device
    ) -> None:
        frequencies = rotary_frequencies(rope, head_dim)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies[None, :]
        scale = _magnitude(rope)
        self.cos = (angles.cos() * scale).to(device)
        self.sin = (angles.sin() * scale).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For positions [T], their cos and sin [T, 1, head_dim / 2]."""
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        return cos, self.sin.index_select(0, positions).unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x [T, heads, head_dim], whose first half pairs with its second, by those angles."""
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.frequency_divisors:
        return plain / _divisors(rope, head_dim)
    if rope.kind is RopeKind.LINEAR:
        return plain / rope.factor
    if rope.kind is RopeKind.LLAMA3:
        return _llama3(plain, rope)
    return _yarn(plain, rope, head_dim) if rope.kind is RopeKind.YARN else plain


def _divisors(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    if len(rope.frequency_divisors) != head_dim // 2:
        msg = f"{len(rope.frequency_divisors)} rotary divisors do not fit heads of {head_dim}"
        raise CorruptModelError(msg)
    return torch.tensor(rope.frequency_divisors, dtype=torch.float32)


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between are mixed in proportion."""
    turns = rope.original_max_position * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / rope.factor + kept * plain


def _yarn(plain: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """The same idea over dimensions: a ramp between those that turn often and those that do not."""
    low = _yarn_dimension(rope, head_dim, turns=rope.beta_fast)
    high = _yarn_dimension(rope, head_dim, turns=rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    stretched = ((torch.arange(head_dim // 2) - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _yarn_dimension(rope: RopeConfig, head_dim: int, *, turns: float) -> float:
    """The dimension whose wave makes that many turns over the trained context."""
    span = math.log(rope.original_max_position / (turns * 2 * math.pi))
    return head_dim * span / (2 * math.log(rope.theta))


def _magnitude(rope: RopeConfig) -> float:
    """What yarn multiplies cos and sin by; 1 for the other rules."""
    if rope.kind is not RopeKind.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
