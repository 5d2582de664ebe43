"""The native library, if there is one that can be trusted to compute what torch computes.

It is made, loaded and tried on small cases once a process; the answer is kept. A library that
gives other results than torch is not used, and the log says so.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import torch

from inference.engine.kv_cache import LayerCache, PageMap
from inference.engine.layers.attention import AttentionKernel, SdpaAttention
from inference.engine.layers.native_attention import NativeAttention
from inference.engine.layers.native_linear import NativeLinear
from inference.engine.layers.step import DecodeRows, PrefillRows
from inference.engine.native.compiling import default_folder, found_recipe, library_file
from inference.engine.native.library import Feature, Library
from inference.engine.native.structures import Kind

_LOG = logging.getLogger(__name__)
_TOLERANCES = {Kind.FLOAT32: 1e-5, Kind.BFLOAT16: 2e-2, Kind.GROUPED8: 2e-2}
_HEADS, _KV_HEADS, _SIZE, _BLOCK = 6, 2, 32, 16


def native_library(folder: Path | None = None) -> Library | None:
    """The library kept in `folder` (by default in the user's cache); None where there is none."""
    return _checked_library(folder or default_folder())


@functools.cache
def _checked_library(folder: Path) -> Library | None:
    path = library_file(folder, found_recipe())
    if path is None:
        return None
    try:
        library = Library(path)
    except (OSError, ValueError) as error:
        _LOG.warning("native kernels are off: %s", error)
        return None
    wrong = None if Feature.THREADS in library.features else "they were built without threads"
    wrong = wrong or problem_of(library)
    if wrong:
        _LOG.warning("native kernels are off: %s", wrong)
    return None if wrong else library


def problem_of(library: Library) -> str | None:
    """What it computes otherwise than torch does; None if nothing."""
    with torch.inference_mode():
        for kind, tolerance in _TOLERANCES.items():
            if _linear_error(library, kind) > tolerance:
                return f"their products of {kind.name} are wrong"
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            if _attention_error(library, dtype) > tolerance:
                return f"their attention over {dtype} is wrong"
    return None


def _linear_error(library: Library, kind: Kind) -> float:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 64, generator=generator)
    bias, x = torch.randn(40, generator=generator), torch.randn(9, 64, generator=generator)
    found = NativeLinear(weight, bias, library=library, kind=kind)(x)
    return _error(found, torch.nn.functional.linear(x, weight, bias))


def _attention_error(library: Library, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(0)
    pages = PageMap(40, _BLOCK, _KV_HEADS, torch.device("cpu"))
    cache = LayerCache(pages, head_dim=_SIZE, dtype=dtype)
    cache.keys[:-1].normal_(generator=generator)
    cache.values[:-1].normal_(generator=generator)
    q = torch.randn(9, _HEADS, _SIZE, generator=generator).to(dtype)
    both = [
        _attended(kernel, q, cache, pages) for kernel in (NativeAttention(library), SdpaAttention())
    ]
    return _error(*both)


def _attended(
    kernel: AttentionKernel, q: torch.Tensor, cache: LayerCache, pages: PageMap
) -> torch.Tensor:
    """Two sequences' single queries and one's chunk."""
    lengths, tables = torch.tensor([300, 37]), torch.arange(38).view(2, 19)
    hidden = torch.arange(19 * _BLOCK)[None, :] >= lengths[:, None]
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, float("-inf"))
    rows = DecodeRows(2, tables, lengths, pages.pages(tables), {None: mask[:, None, None, :]})
    seen = torch.ones(7, 80, dtype=torch.bool).tril(73)
    mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, float("-inf"))
    chunk = PrefillRows(2, 9, 73, pages.pages(torch.arange(5)[None, :] + 3), {None: mask})
    return torch.cat(
        [kernel.decode(q[:2], cache, rows, None), kernel.prefill(q[2:], cache, chunk, None)]
    )


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value; infinite where one is no number."""
    worst = (found - expected).float().abs().max() / expected.float().abs().max()
    return float(worst.nan_to_num(nan=float("inf")))
