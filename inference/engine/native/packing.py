"""Weights in the order in which the C kernels read them, and as integers where that is wanted.

A matrix [outputs, inputs] becomes panels of 32 outputs. Grouped integers have a scale in half
precision for each output and each 32 inputs, those of four bits a minimum too: weight = scale *
integer + minimum; of eight bits the minimum is -128 scales. Four bits are taken only where they
lose nothing, as for weights that come from a 4-bit file. Knows no model and calls no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from inference.engine.native.arena import Arena
from inference.engine.native.structures import Kind

PANEL = 32
GROUP = 32
_LOSSLESS = 1e-5  # of the largest weight of a group: the rounding of float32, no more


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed matrix. `panels` is bytes, or values in panel order."""

    kind: Kind
    outputs: int
    inputs: int
    panels: torch.Tensor


@dataclass(frozen=True, slots=True)
class Grouped:
    """Integers [outputs, groups, 32] as bytes; scales and minima [outputs, groups], half."""

    integers: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """What they stand for, float32 [outputs, groups, 32]."""
        scales, minima = self.scales.float()[..., None], self.minima.float()[..., None]
        return self.integers * scales + minima


def can_pack(kind: Kind, *, inputs: int) -> bool:
    """Whether rows of that many inputs fill what the kernels read at once."""
    return inputs % (1 if kind is Kind.FLOAT32 else GROUP) == 0


def packed(weight: torch.Tensor, kind: Kind, arena: Arena) -> Packed:
    """`weight` [outputs, inputs] for the kernels, in the arena's memory.

    `GROUPED8` means at most eight bits: the result says whether it took four. Raises
    `ValueError` where `can_pack` is false.
    """
    outputs, inputs = weight.shape
    if not can_pack(kind, inputs=inputs):
        raise ValueError(f"rows of {inputs} inputs cannot be packed as {kind.name}")
    filled = _filled(weight.float())
    if kind in (Kind.GROUPED8, Kind.GROUPED4):
        found = grouped(filled)
        kind, panels = found[0], _grouped_panels(*found)
    else:
        panels = _float_panels(filled) if kind is Kind.FLOAT32 else _bfloat16_panels(filled)
    return Packed(kind, outputs, inputs, arena.kept(panels))


def _filled(weight: torch.Tensor) -> torch.Tensor:
    """With rows of zeros up to a whole panel."""
    missing = -weight.shape[0] % PANEL
    return functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def grouped(weight: torch.Tensor) -> tuple[Kind, Grouped]:
    """As few bits as lose nothing, else eight. float32 [outputs, inputs]."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    for candidate in (_between_ends, _around_largest):
        sample = groups[:PANEL]
        if _is_lossless(candidate(sample), sample):
            found = candidate(groups)
            if _is_lossless(found, groups):
                return Kind.GROUPED4, found
    return Kind.GROUPED8, _symmetric(groups)


def _is_lossless(found: Grouped, groups: torch.Tensor) -> bool:
    largest = torch.maximum(groups.amax(-1), -groups.amin(-1))
    error = found.values.sub_(groups).abs_().amax(-1)
    return bool((error <= _LOSSLESS * largest).all())


def _between_ends(groups: torch.Tensor) -> Grouped:
    """Four bits from the smallest weight to the largest: recovers Q4_1 as it was."""
    low, high = groups.aminmax(dim=-1)
    return _rounded(groups, (high - low) / 15, low, top=15)


def _around_largest(groups: torch.Tensor) -> Grouped:
    """Four bits from minus 8, which is the weight farthest from 0: recovers Q4_0 as it was."""
    place = groups.abs().argmax(-1, keepdim=True)
    scales = groups.gather(-1, place)[..., 0] / -8
    return _rounded(groups, scales, -8 * scales, top=15)


def _symmetric(groups: torch.Tensor) -> Grouped:
    """Eight bits around 128, the largest magnitude at 127 from it: keeps Q8_0 as it is."""
    scales = (groups.abs().amax(-1) / 127).half().float()
    return _rounded(groups, scales, -128 * scales, top=255)


def _rounded(
    groups: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor, *, top: int
) -> Grouped:
    half_scales, half_minima = scales.half(), minima.half()
    steps = half_scales.float()[..., None]
    steps = torch.where(steps == 0, torch.ones_like(steps), steps)
    integers = ((groups - half_minima.float()[..., None]) / steps).round_().clamp_(0, top)
    return Grouped(integers.to(torch.uint8), half_scales, half_minima)


def _float_panels(weight: torch.Tensor) -> torch.Tensor:
    """[panels, inputs, 32]"""
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def _bfloat16_panels(weight: torch.Tensor) -> torch.Tensor:
    """[panels, inputs / 2, 32]: each output's inputs two by two, as one integer"""
    pairs = weight.bfloat16().view(torch.int32).view(-1, PANEL, weight.shape[1] // 2)
    return pairs.transpose(1, 2).contiguous()


def _grouped_panels(kind: Kind, found: Grouped) -> torch.Tensor:
    """[panels, groups, bytes]: the integers four by four, 32 scales, if of four bits 32 minima"""
    outputs, groups, _ = found.integers.shape
    fours = found.integers.view(torch.int32).view(-1, PANEL, groups, GROUP // 4).permute(0, 2, 3, 1)
    if kind is Kind.GROUPED4:  # even steps in the low halves of the bytes, odd ones in the high
        fours = fours[:, :, 0::2] | (fours[:, :, 1::2] << 4)
    parts = [fours, found.scales.view(-1, PANEL, groups).transpose(1, 2)]
    if kind is Kind.GROUPED4:
        parts.append(found.minima.view(-1, PANEL, groups).transpose(1, 2))
    rows = [
        each.contiguous().view(outputs // PANEL, groups, -1).view(torch.uint8) for each in parts
    ]
    return torch.cat(rows, dim=-1)
