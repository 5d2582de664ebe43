"""The paged key and value cache: [blocks, kv_heads, block_size, head_dim] twice for each layer.

Which sequence owns which block is the block pool's business; here blocks are only numbers. One
block more than the pool knows is kept: it is never written, so that rows filled up with it read
zeros. The layout is behind `PageMap` and `LayerCache`; nothing else computes an address.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class PageMap:
    """Turns block numbers into places.

    A page is one head's part of a block, [block_size, head_dim]; a slot is one row of a page.
    """

    num_blocks: int
    block_size: int
    kv_heads: int
    device: torch.device

    @property
    def empty_block(self) -> int:
        """The block that is never written."""
        return self.num_blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def pages(self, tables: torch.Tensor) -> torch.Tensor:
        """Block numbers [B, n] to page numbers [B * kv_heads * n], head by head for each row."""
        heads = torch.arange(self.kv_heads, device=self.device)[None, :, None]
        return (tables[:, None, :] * self.kv_heads + heads).reshape(-1)

    def slots(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Blocks [T] and offsets in them [T] to slot numbers [T * kv_heads]."""
        heads = torch.arange(self.kv_heads, device=self.device)[None, :]
        pages = blocks[:, None] * self.kv_heads + heads
        return (pages * self.block_size + offsets[:, None]).reshape(-1)


class LayerCache:
    """One layer's keys and values."""

    def __init__(self, pages: PageMap, *, head_dim: int, dtype: torch.dtype) -> None:
        shape = (pages.num_blocks + 1, pages.kv_heads, pages.block_size, head_dim)
        self.keys = _zeros(shape, dtype=dtype, device=pages.device)
        self.values = _zeros(shape, dtype=dtype, device=pages.device)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys and values [T, kv_heads, head_dim] into those slots [T * kv_heads]."""
        size = self.keys.shape[-1]
        self.keys.view(-1, size).index_copy_(0, slots, keys.reshape(-1, size))
        self.values.view(-1, size).index_copy_(0, slots, values.reshape(-1, size))

    def gathered(self, pages: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of those pages as keys and values [rows, kv_heads, tokens, head_dim]."""
        _, heads, block, size = self.keys.shape
        keys = self.keys.view(-1, block, size).index_select(0, pages)
        values = self.values.view(-1, block, size).index_select(0, pages)
        return keys.view(rows, heads, -1, size), values.view(rows, heads, -1, size)


class KvCache:
    """The layers' caches, of one shape.

    A device's memory is taken whole at once; on the CPU the system gives each page when it is
    first written.
    """

    def __init__(
        self, pages: PageMap, *, num_layers: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.pages = pages
        self.layers = [LayerCache(pages, head_dim=head_dim, dtype=dtype) for _ in range(num_layers)]

    @property
    def num_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU from numpy, which asks the system for clean pages and touches none.

    torch would write them all: seconds at start for a cache of a gigabyte.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + _ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _ALIGNMENT
    return torch.from_numpy(room[first : first + size]).view(dtype).view(shape)
