"""Top-k, top-p and min-p as one thing: the least weight that a token needs to be drawn.

Weights are exp((logit - largest) / temperature), so the largest is 1. The three filters apply in
the order min-p, top-k, top-p, each to what the former left; each keeps a head of the sorted
weights, so together they are a threshold. Equal weights at the threshold are all kept. The
largest 256 usually settle it; rows that need more are sorted whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_HEAD = 256


@dataclass(frozen=True, slots=True)
class Filters:
    """One row's filters; `top_k` 0, `top_p` 1 and `min_p` 0 do nothing."""

    top_k: int
    top_p: float
    min_p: float

    @property
    def active(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def filtered(weights: torch.Tensor, filters: list[Filters]) -> torch.Tensor:
    """`weights` [R, V] with 0 for what each row's filters exclude."""
    rows = [row for row, each in enumerate(filters) if each.active]
    if not rows:
        return weights
    chosen = weights[rows]
    limits = _thresholds(chosen, [filters[row] for row in rows])
    weights[rows] = chosen.masked_fill(chosen < limits[:, None], 0.0)
    return weights


def _thresholds(weights: torch.Tensor, filters: list[Filters]) -> torch.Tensor:
    size = weights.shape[1]
    head = weights.topk(min(_HEAD, size)).values
    limits, settled = _head_thresholds(weights, head, filters)
    open_rows = [] if head.shape[1] == size else (~settled).nonzero()[:, 0].tolist()
    if open_rows:
        whole = weights[open_rows].sort(descending=True).values
        some = [filters[row] for row in open_rows]
        limits[open_rows], _ = _head_thresholds(weights[open_rows], whole, some)
    return limits


def _head_thresholds(
    weights: torch.Tensor, head: torch.Tensor, filters: list[Filters]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds [R], and whether the sorted `head` [R, n] was long enough to be sure."""
    width = head.shape[1]
    top_k = torch.tensor([each.top_k or weights.shape[1] for each in filters])
    within = (top_k - 1).clamp(max=width - 1)[:, None].to(head.device)
    by_rank = head.gather(-1, within)[:, 0]
    ranked = top_k.to(head.device) <= width
    by_rank = torch.where(ranked, by_rank, torch.zeros_like(by_rank))
    limits = torch.maximum(by_rank, _row_values([each.min_p for each in filters], head))
    mass = weights.masked_fill(weights < limits[:, None], 0.0).sum(-1, dtype=torch.float64)
    by_mass, massed = _nucleus(head, limits, mass, [each.top_p for each in filters])
    asked = torch.tensor([each.top_k > 0 for each in filters], device=head.device)
    return torch.maximum(limits, by_mass), massed & (ranked | ~asked)


def _nucleus(
    head: torch.Tensor, limits: torch.Tensor, mass: torch.Tensor, top_p: list[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight of the last token that top-p keeps, and whether the head reaches that far."""
    kept = head.masked_fill(head < limits[:, None], 0.0).double().cumsum(-1)
    wanted = _row_values(top_p, kept) * mass
    needed = (kept < wanted[:, None]).sum(-1)
    reached = needed < head.shape[1]
    last = needed.clamp(max=head.shape[1] - 1)[:, None]
    asked = torch.tensor([p < 1.0 for p in top_p], device=head.device)
    by_mass = head.gather(-1, last)[:, 0]
    return torch.where(asked & reached, by_mass, 0.0), reached | ~asked


def _row_values(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
