"""Attention by the C kernels, behind the attention seam: the cache is read where it lies.

Each row reads its own length and nothing is gathered, padded or masked. CPU only; the cache is
float32 or bfloat16, sums are float32.
"""

from __future__ import annotations

import torch

from inference.engine.kv_cache import LayerCache
from inference.engine.layers.step import DecodeRows, PrefillRows, Span
from inference.engine.native.library import Library
from inference.engine.native.structures import (
    DecodesStruct,
    Kind,
    PagesStruct,
    PrefillStruct,
    RowsStruct,
)

_LANES, _WIDEST_HEAD = 16, 512
_KINDS = {torch.float32: Kind.FLOAT32, torch.bfloat16: Kind.BFLOAT16}


class NativeAttention:
    """An `AttentionKernel` over a loaded library."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def decode(
        self, q: torch.Tensor, cache: LayerCache, rows: DecodeRows, span: Span
    ) -> torch.Tensor:
        pages, found = pages_struct(cache, q.shape[1], span), torch.empty(q.shape)
        decodes, queries = decodes_struct(rows), q.float().contiguous()
        size = self._library.decode_bytes(pages, decodes)
        scratch = torch.empty(size, dtype=torch.uint8)
        self._library.decode(
            pages, decodes, _rows(queries, found), scratch.data_ptr(), torch.get_num_threads()
        )
        return found.to(q.dtype)

    def prefill(
        self, q: torch.Tensor, cache: LayerCache, rows: PrefillRows, span: Span
    ) -> torch.Tensor:
        pages, found = pages_struct(cache, q.shape[1], span), torch.empty(q.shape)
        chunk, queries = prefill_struct(rows, cache.keys.shape[1]), q.float().contiguous()
        chunk.first = 0  # q holds the chunk's rows alone
        threads = torch.get_num_threads()
        size = self._library.prefill_bytes(pages, threads)
        scratch = torch.empty(size, dtype=torch.uint8)
        self._library.prefill(pages, chunk, _rows(queries, found), scratch.data_ptr(), threads)
        return found.to(q.dtype)


def can_attend(*, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels handle such a cache."""
    return (
        device.type == "cpu"
        and dtype in _KINDS
        and head_dim % _LANES == 0
        and head_dim <= _WIDEST_HEAD
    )


def pages_struct(cache: LayerCache, heads: int, span: Span) -> PagesStruct:
    """A layer's cache for the kernels; valid while the cache lives."""
    _, kv_heads, block_size, head_dim = cache.keys.shape
    return PagesStruct(
        keys=cache.keys.data_ptr(),
        values=cache.values.data_ptr(),
        kind=_KINDS[cache.keys.dtype],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        span=span or 0,
    )


def decodes_struct(rows: DecodeRows | None) -> DecodesStruct:
    """A step's decode rows for the kernels, valid while `rows` lives; empty for None."""
    if rows is None:
        return DecodesStruct()
    return DecodesStruct(
        rows=rows.count,
        width=rows.tables.shape[1],
        pages=rows.pages.data_ptr(),
        lengths=rows.lengths.data_ptr(),
    )


def prefill_struct(rows: PrefillRows, kv_heads: int) -> PrefillStruct:
    """One chunk for the kernels; valid while `rows` lives."""
    return PrefillStruct(
        first=rows.first,
        count=rows.count,
        start=rows.start,
        width=rows.pages.numel() // kv_heads,
        pages=rows.pages.data_ptr(),
    )


def _rows(queries: torch.Tensor, found: torch.Tensor) -> RowsStruct:
    size = queries.shape[1] * queries.shape[2]
    return RowsStruct(
        queries=queries.data_ptr(), found=found.data_ptr(), query_stride=size, found_stride=size
    )
