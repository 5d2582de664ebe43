"""Runs one batch: tokens to tensors, the forward pass, logits where they are wanted, samples.

The torch side of the `Runner` protocol. It owns the model, the cache's memory and the sampler; it
decides nothing about who runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from inference.engine.batch import Batch, Chunk, RawLogprobs, Sampled
from inference.engine.config import EngineConfig
from inference.engine.kv_cache import KvCache, PageMap
from inference.engine.layers.step import StepBuilder, StepInputs
from inference.engine.models.model import Model
from inference.engine.sampler import Sampler
from inference.engine.sampling.logprobs import raw_logprobs
from inference.engine.sequence import SequenceId

_ROWS_AT_ONCE = 64  # prompt positions whose logits are held together: 64 x vocabulary floats


class TorchRunner:
    """A model with its cache and its sampler. Used from one thread."""

    def __init__(
        self, model: Model, config: EngineConfig, *, sampler: Sampler | None = None
    ) -> None:
        shape, placement = model.config, model.placement
        pages = PageMap(config.num_blocks, config.block_size, shape.num_kv_heads, placement.device)
        self._model = model
        self._cache = KvCache(
            pages,
            num_layers=shape.num_layers,
            head_dim=shape.head_dim,
            dtype=placement.dtype,
        )
        self._steps = StepBuilder(
            pages, spans=model.masked_spans, dtype=placement.dtype, device=placement.device
        )
        self._sampler = sampler or Sampler(shape.vocab_size)

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    @property
    def cache_bytes(self) -> int:
        """Memory that the key and value cache holds."""
        return self._cache.num_bytes

    def run(self, batch: Batch) -> Sampled:
        """Compute every chunk of the batch and sample for those that want it."""
        if not batch.chunks:
            return Sampled([], [])
        with torch.inference_mode():
            step = self._steps.build(batch.chunks)
            hidden = self._model.forward(step, self._cache)
            sampled = self._sampled(batch, step, hidden)
            sampled.prompt_logprobs = self._prompt_logprobs(batch, step, hidden)
        return sampled

    def forget(self, seq_ids: Iterable[SequenceId]) -> None:
        self._sampler.forget(seq_ids)

    def reset_cache(self) -> None:
        """Nothing to drop: what is in the cache is found only through the block pool."""

    def _sampled(self, batch: Batch, step: StepInputs, hidden: torch.Tensor) -> Sampled:
        pairs = [
            (chunk.sequence, first + chunk.length - 1)
            for chunk, first in zip(batch.chunks, step.first_rows, strict=True)
            if chunk.samples
        ]
        if not pairs:
            return Sampled([], [])
        logits = self._model.logits(hidden[[row for _, row in pairs]])
        tokens, logprobs = self._sampler.sample(logits, [sequence for sequence, _ in pairs])
        return Sampled(tokens, logprobs)

    def _prompt_logprobs(
        self, batch: Batch, step: StepInputs, hidden: torch.Tensor
    ) -> dict[SequenceId, list[RawLogprobs]]:
        return {
            chunk.sequence.seq_id: self._chunk_logprobs(chunk, first, hidden)
            for chunk, first in zip(batch.chunks, step.first_rows, strict=True)
            if chunk.prompt_positions
        }

    def _chunk_logprobs(self, chunk: Chunk, first: int, hidden: torch.Tensor) -> list[RawLogprobs]:
        """One entry per wanted position: that of the prompt token which comes after it."""
        count = chunk.sequence.params.prompt_logprobs or 0
        positions = chunk.prompt_positions
        found: list[RawLogprobs] = []
        for start in range(positions.start, positions.stop, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, positions.stop)
            row = first + start - chunk.start
            logits = self._model.logits(hidden[row : row + stop - start])
            following = chunk.sequence.prompt_ids[start + 1 : stop + 1]
            found += raw_logprobs(logits, following, [count] * len(following))
        return found
