"""Products by the C kernels, behind the linear layers' seam: float32, bfloat16 or integers.

Integer weights come with activations that are rounded to bytes for each row and group of 32, so
a row's result does not depend on its batch. Everything goes in and comes out in the type of x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from inference.engine.native.arena import Arena
from inference.engine.native.library import Library
from inference.engine.native.packing import PANEL, Packed, packed
from inference.engine.native.structures import Kind, LinearStruct


class NativeLinear:
    """A packed weight with its bias; `struct` is what the C kernels take, valid while this lives.

    `kind` GROUPED8 takes four bits where that loses nothing.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        library: Library,
        kind: Kind,
        arena: Arena | None = None,
    ) -> None:
        self._library = library
        self._packed: Packed = packed(weight, kind, arena or Arena())
        self._bias = None if bias is None else _filled(bias)
        self.struct = LinearStruct(
            kind=self._packed.kind,
            inputs=self._packed.inputs,
            outputs=self._packed.outputs,
            panels=self._packed.panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
        )

    @property
    def kind(self) -> Kind:
        """What it was packed as."""
        return self._packed.kind

    @property
    def num_bytes(self) -> int:
        return self._packed.panels.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.float().contiguous()
        found = torch.empty(len(rows), self._packed.outputs)
        size = self._library.linear_bytes(self.struct, len(rows))
        scratch = torch.empty(size, dtype=torch.uint8)
        self._library.linear(
            self.struct,
            rows.data_ptr(),
            len(rows),
            found.data_ptr(),
            scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return found.to(x.dtype)


NativeMaker: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], NativeLinear]


def native_linear_maker(library: Library, kind: Kind) -> NativeMaker:
    """Makes linears of that kind, all in one arena."""
    arena = Arena()

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> NativeLinear:
        return NativeLinear(weight, bias, library=library, kind=kind, arena=arena)

    return make


def _filled(bias: torch.Tensor) -> torch.Tensor:
    """float32, with zeros up to a whole panel."""
    wide = bias.float()
    return torch.cat([wide, wide.new_zeros(-len(wide) % PANEL)])
