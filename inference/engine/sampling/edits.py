"""Changes to logits that a request asks for: penalties, biases, and tokens it must not end with.

Only the entries concerned are read and written, for all rows together. Repetition penalties count
prompt and output; presence and frequency penalties count the output only. What has been counted
is kept per sequence, so a step costs what is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from inference.engine.sequence import Sequence, SequenceId
from inference.generation import SamplingParams

Array = np.ndarray[Any, np.dtype[Any]]


class LogitEdits:
    """Applies the edits; remembers the counts of each sequence until it is forgotten."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._seen: dict[SequenceId, _Seen] = {}

    def forget(self, seq_ids: Iterable[SequenceId]) -> None:
        for seq_id in seq_ids:
            self._seen.pop(seq_id, None)

    def apply(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        """Edit `logits` [R, V] in place, row i for `sequences[i]`."""
        rows = list(enumerate(sequences))
        self._penalise(logits, [(row, each) for row, each in rows if penalises(each.params)])
        self._bias(logits, [(row, each) for row, each in rows if each.params.logit_bias])
        self._ban(logits, [(row, each) for row, each in rows if must_go_on(each)])

    def _penalise(self, logits: torch.Tensor, rows: list[tuple[int, Sequence]]) -> None:
        if not rows:
            return
        seen = [self._counted(sequence) for _, sequence in rows]
        places = [
            row * self._vocab_size + each.ids for (row, _), each in zip(rows, seen, strict=True)
        ]
        where = torch.from_numpy(np.concatenate(places)).to(logits.device)
        counts = torch.from_numpy(np.concatenate([each.counts for each in seen])).to(logits.device)
        sizes = torch.tensor([len(each.ids) for each in seen])
        strengths = torch.tensor([_strengths(sequence.params) for _, sequence in rows])
        repetition, frequency, presence = (
            strengths.repeat_interleave(sizes, dim=0).to(logits.device).unbind(-1)
        )
        flat = logits.view(-1)
        found = flat[where]
        found = torch.where(found > 0, found / repetition, found * repetition)
        flat[where] = found - frequency * counts - presence * (counts > 0)

    def _counted(self, sequence: Sequence) -> _Seen:
        seen = self._seen.get(sequence.seq_id)
        if seen is None:
            seen = self._seen[sequence.seq_id] = _Seen(sequence.prompt_ids)
        seen.count(sequence.output_ids)
        return seen

    def _bias(self, logits: torch.Tensor, rows: list[tuple[int, Sequence]]) -> None:
        """Ids beyond the vocabulary have no logit and are passed over."""
        biases = [
            (row, token, bias)
            for row, sequence in rows
            for token, bias in sequence.params.logit_bias.items()
            if 0 <= token < self._vocab_size
        ]
        if biases:
            where, tokens, values = zip(*biases, strict=True)
            logits[list(where), list(tokens)] += torch.tensor(values, device=logits.device)

    def _ban(self, logits: torch.Tensor, rows: list[tuple[int, Sequence]]) -> None:
        banned = [
            (row, token)
            for row, sequence in rows
            for token in ending_ids(sequence)
            if 0 <= token < self._vocab_size
        ]
        if banned:
            where, tokens = zip(*banned, strict=True)
            logits[list(where), list(tokens)] = float("-inf")


class _Seen:
    """Which tokens a sequence holds, each once, and how often its output has each."""

    def __init__(self, prompt_ids: list[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._place = {token: place for place, token in enumerate(distinct)}
        self._ids = np.fromiter(distinct, np.int64, len(distinct))
        self._counts = np.zeros(len(distinct), np.float32)
        self._counted = 0

    @property
    def ids(self) -> Array:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Array:
        return self._counts[: len(self._place)]

    def count(self, output_ids: list[int]) -> None:
        """Count what the output has gained since the last time."""
        for token in output_ids[self._counted :]:
            place = self._place_of(token)  # first, for it may replace the arrays
            self._counts[place] += 1
        self._counted = len(output_ids)

    def _place_of(self, token: int) -> int:
        if token not in self._place:
            self._place[token] = len(self._place)
            self._grow()
            self._ids[self._place[token]] = token
        return self._place[token]

    def _grow(self) -> None:
        if len(self._place) > len(self._ids):
            room = len(self._ids) + 64
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])


def edits_anything(sequence: Sequence) -> bool:
    params = sequence.params
    return penalises(params) or bool(params.logit_bias) or must_go_on(sequence)


def penalises(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or bool(
        params.frequency_penalty or params.presence_penalty
    )


def must_go_on(sequence: Sequence) -> bool:
    """It has fewer output tokens than `min_tokens`, so nothing that ends it may be sampled."""
    return len(sequence.output_ids) < sequence.params.min_tokens


def ending_ids(sequence: Sequence) -> frozenset[int]:
    return sequence.eos_ids | frozenset(sequence.params.stop_token_ids)


def _strengths(params: SamplingParams) -> tuple[float, float, float]:
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty
