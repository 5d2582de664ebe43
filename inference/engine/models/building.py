"""Which implementation of a model fits the machine: the native kernels, torch's, or a mixture.

`dtype` is that of the weights: float32, bfloat16, or int8 for integers of at most eight bits.
"""

from __future__ import annotations

import torch

from inference.engine.layers.attention import AttentionKernel
from inference.engine.layers.int8_linear import int8_linear_maker
from inference.engine.layers.linear import LinearMaker
from inference.engine.layers.native_attention import NativeAttention, can_attend
from inference.engine.models.files import ModelFiles
from inference.engine.models.llama import Llama
from inference.engine.models.model import Model
from inference.engine.models.native_llama import NativeLlama, can_run_native
from inference.engine.models.placement import Placement
from inference.engine.native.library import Library
from inference.engine.native.structures import Kind

_KINDS = {
    torch.float32: Kind.FLOAT32,
    torch.bfloat16: Kind.BFLOAT16,
    torch.int8: Kind.GROUPED8,
}


def built_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_tokens: int,
    library: Library | None = None,
) -> Model:
    """The weights of an opened model in memory; the native kernels serve as far as they fit.

    Raises `ModelError` for wrong weights, `ValueError` for integers where nothing multiplies them.
    """
    between = torch.bfloat16 if dtype is torch.int8 else dtype
    placement = Placement(dtype=between, device=device, max_tokens=max_tokens)
    kind = _KINDS[dtype]
    if library and can_run_native(files.config, placement, kind):
        return NativeLlama(files.config, files.weights, placement, library=library, kind=kind)
    if dtype is torch.int8:
        placement = Placement(dtype=torch.float32, device=device, max_tokens=max_tokens)
    return Llama(
        files.config,
        files.weights,
        placement,
        kernel=_attention(files, placement, library),
        make_linear=_integers(device) if dtype is torch.int8 else None,
    )


def _attention(
    files: ModelFiles, placement: Placement, library: Library | None
) -> AttentionKernel | None:
    size, dtype, device = files.config.head_dim, placement.dtype, placement.device
    fits = library is not None and can_attend(head_dim=size, dtype=dtype, device=device)
    return NativeAttention(library) if library and fits else None


def _integers(device: torch.device) -> LinearMaker:
    maker = int8_linear_maker() if device.type == "cpu" else None
    if maker is None:
        raise ValueError("dtype 'int8' is not supported here; use auto, float32 or bfloat16")
    return maker
