"""The tensors of one step: which token stands where, and what each attends to.

Decode rows (one new token) come first and are computed together; each longer chunk follows with
its own attention. Built once per step and read by every layer. Knows the cache's layout only
through the page numbers that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from inference.engine.batch import Chunk
from inference.engine.kv_cache import PageMap

Span = int | None


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """B sequences with one query each.

    `tables` [B, blocks] and `lengths` [B] describe the pages, short rows filled up with the empty
    block; `pages` [B * kv_heads * blocks] are the same pages one by one. `masks` gives for each
    attention span 0 or -inf, [B, 1, 1, blocks * block_size].
    """

    count: int
    tables: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    masks: dict[Span, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """One chunk's rows [first, last) of the step.

    Its tokens are [start, start + count) of the sequence. `masks` [count, start + count] per
    span; None is plain causal from position 0.
    """

    first: int
    last: int
    start: int
    pages: torch.Tensor
    masks: dict[Span, torch.Tensor | None]

    @property
    def count(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All tokens of a step, flat.

    `slots` says where each token's key and value rows go; `first_rows` gives the row of each
    chunk's first token, in the order in which the chunks were given.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    decode: DecodeRows | None
    prefills: list[PrefillRows]
    first_rows: list[int]


class StepBuilder:
    """Makes `StepInputs` from chunks."""

    def __init__(
        self, pages: PageMap, *, spans: Iterable[Span], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._pages = pages
        self._spans = tuple(dict.fromkeys(spans))
        self._dtype = dtype
        self._device = device

    def build(self, chunks: list[Chunk]) -> StepInputs:
        """The inputs of those chunks, single tokens moved to the front."""
        order = sorted(range(len(chunks)), key=lambda each: chunks[each].length > 1)
        ordered = [chunks[each] for each in order]
        single = [chunk for chunk in ordered if chunk.length == 1]
        rows, starts = 0, [0] * len(chunks)
        for each in order:
            starts[each] = rows
            rows += chunks[each].length
        return StepInputs(
            token_ids=self._tensor([token for chunk in ordered for token in chunk.token_ids]),
            positions=self._tensor([p for c in ordered for p in range(c.start, c.end)]),
            slots=self._slots(ordered),
            decode=self._decode(single) if single else None,
            prefills=[
                self._prefill(chunk, starts[each])
                for each, chunk in zip(order, ordered, strict=True)
                if chunk.length > 1
            ],
            first_rows=starts,
        )

    def _slots(self, chunks: list[Chunk]) -> torch.Tensor:
        size = self._pages.block_size
        places = [
            (chunk.sequence.block_ids[position // size], position % size)
            for chunk in chunks
            for position in range(chunk.start, chunk.end)
        ]
        blocks, offsets = zip(*places, strict=True)
        return self._pages.slots(self._tensor(list(blocks)), self._tensor(list(offsets)))

    def _decode(self, chunks: list[Chunk]) -> DecodeRows:
        used = [chunk.sequence.block_ids[: self._pages.blocks_for(chunk.end)] for chunk in chunks]
        width = max(map(len, used))
        empty = self._pages.empty_block
        tables = self._tensor([[*ids, *[empty] * (width - len(ids))] for ids in used])
        lengths = self._tensor([chunk.end for chunk in chunks])
        columns = torch.arange(width * self._pages.block_size, device=self._device)
        return DecodeRows(
            count=len(chunks),
            tables=tables,
            lengths=lengths,
            pages=self._pages.pages(tables),
            masks={
                span: self._mask(columns[None, :], lengths[:, None] - 1, span)[:, None, None, :]
                for span in self._spans
            },
        )

    def _prefill(self, chunk: Chunk, first: int) -> PrefillRows:
        ids = chunk.sequence.block_ids[: self._pages.blocks_for(chunk.end)]
        return PrefillRows(
            first=first,
            last=first + chunk.length,
            start=chunk.start,
            pages=self._pages.pages(self._tensor([ids])),
            masks={span: self._prefill_mask(chunk, span) for span in self._spans},
        )

    def _prefill_mask(self, chunk: Chunk, span: Span) -> torch.Tensor | None:
        if chunk.start == 0 and (span is None or chunk.end <= span):
            return None
        columns = torch.arange(chunk.end, device=self._device)
        return self._mask(columns[None, :], columns[chunk.start :, None], span)

    def _mask(self, columns: torch.Tensor, queries: torch.Tensor, span: Span) -> torch.Tensor:
        """0 where the query at that position may look at that column, -inf elsewhere."""
        hidden = columns > queries
        if span is not None:
            hidden = hidden | (columns <= queries - span)
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
