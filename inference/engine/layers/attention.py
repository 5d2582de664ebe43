"""Attention over the paged cache, by torch's own kernels; the seam that others can fill.

Each key-value head serves a group of query heads: the group is laid along the query axis, so keys
and values are read once and never expanded. Works on any device. A kernel that reads the pages in
place is another `AttentionKernel`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from inference.engine.kv_cache import LayerCache
from inference.engine.layers.step import DecodeRows, PrefillRows, Span


class AttentionKernel(Protocol):
    """q is [T, heads, head_dim]; so is the result. The cache holds this step's keys already."""

    def decode(
        self, q: torch.Tensor, cache: LayerCache, rows: DecodeRows, span: Span
    ) -> torch.Tensor: ...

    def prefill(
        self, q: torch.Tensor, cache: LayerCache, rows: PrefillRows, span: Span
    ) -> torch.Tensor: ...


class SdpaAttention:
    """Gathers the pages and calls `scaled_dot_product_attention`."""

    def decode(
        self, q: torch.Tensor, cache: LayerCache, rows: DecodeRows, span: Span
    ) -> torch.Tensor:
        keys, values = cache.gathered(rows.pages, rows.count)
        grouped = q.view(rows.count, keys.shape[1], -1, q.shape[-1])
        found = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=rows.masks[span]
        )
        return found.reshape(q.shape)

    def prefill(
        self, q: torch.Tensor, cache: LayerCache, rows: PrefillRows, span: Span
    ) -> torch.Tensor:
        keys, values = cache.gathered(rows.pages, 1)
        tokens, heads, size = rows.start + rows.count, keys.shape[1], q.shape[-1]
        grouped = q.view(rows.count, heads, -1, size).permute(1, 2, 0, 3)
        shape = (heads, grouped.shape[1], tokens, size)
        mask = rows.masks[span]
        found = functional.scaled_dot_product_attention(
            grouped,
            keys[0, :, None, :tokens].expand(shape),
            values[0, :, None, :tokens].expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return found.permute(2, 0, 1, 3).reshape(q.shape)


def attend(
    kernel: AttentionKernel,
    q: torch.Tensor,
    cache: LayerCache,
    *,
    decode: DecodeRows | None,
    prefills: list[PrefillRows],
    span: Span,
) -> torch.Tensor:
    """Every row of the step: the decode rows together, then each chunk by itself."""
    parts = [kernel.decode(q[: decode.count], cache, decode, span)] if decode else []
    parts += [kernel.prefill(q[rows.first : rows.last], cache, rows, span) for rows in prefills]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
