"""What the forward pass asks of a model's weights: tensors by one set of names.

The names are those of transformers' Llama; each file format maps its own onto them. Knows no
format.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inference.engine.models.errors import CorruptModelError


class WeightSource(Protocol):
    """An opened model file or folder."""

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""

    def tensor(self, name: str) -> torch.Tensor:
        """That tensor, on the CPU, in whatever floating-point type it is kept.

        Raises `CorruptModelError` where it is missing or damaged, `UnsupportedModelError` where
        its type is not one that the engine reads.
        """


def take(source: WeightSource, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """That tensor, checked: of that shape, and every value finite."""
    found = source.tensor(name)
    if tuple(found.shape) != shape:
        msg = f"tensor {name!r} has shape {tuple(found.shape)}, the configuration says {shape}"
        raise CorruptModelError(msg)
    if not bool(torch.isfinite(found).all()):
        msg = f"tensor {name!r} holds values that are not finite"
        raise CorruptModelError(msg)
    return found
