"""What the runner needs of a model: hidden states of a step, and logits of some of them."""

from __future__ import annotations

from typing import Protocol

import torch

from inference.engine.kv_cache import KvCache
from inference.engine.layers.step import Span, StepInputs
from inference.engine.models.config import ModelConfig
from inference.engine.models.placement import Placement


class Model(Protocol):
    """A model in memory. Immutable, used from one thread."""

    config: ModelConfig
    placement: Placement

    @property
    def masked_spans(self) -> tuple[Span, ...]:
        """The attention spans for which `StepInputs` must bring masks."""

    def forward(self, step: StepInputs, cache: KvCache) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose keys and values are then cached."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [R, vocab] of those rows of hidden states [R, hidden]."""
