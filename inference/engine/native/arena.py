"""Memory for weights, in large pages where the system gives them: reading it misses less.

Tensors are laid side by side in a few mappings and stay there as long as any of them lives. Knows
nothing of what it keeps.
"""

from __future__ import annotations

import mmap

import torch

_MAPPING = 64 * 1024 * 1024
_LINE = 64
_LARGE_PAGE = 2 * 1024 * 1024


class Arena:
    """Hands out places one after the other; nothing is given back before all is."""

    def __init__(self) -> None:
        self._free: torch.Tensor = torch.empty(0, dtype=torch.uint8)

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of `tensor`, contiguous and aligned, in this memory."""
        size = tensor.numel() * tensor.element_size()
        taken = -(-size // _LINE) * _LINE
        if taken > len(self._free):
            self._free = _mapping(max(taken, _MAPPING))
        place, self._free = self._free[:size], self._free[taken:]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _mapping(size: int) -> torch.Tensor:
    """Clean memory of at least that size, which takes room only where it is written."""
    room = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(room, dtype=torch.uint8)
    first = -whole.data_ptr() % _LARGE_PAGE
    return whole[first : first + size]
