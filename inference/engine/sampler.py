"""Chooses the next token of each sequence from its logits.

Vectorised over the batch; a stage that no row asks for is not run. Greedy rows never reach the
random part. A seeded sequence's choice depends on its logits, its seed and the token's place, and
on nothing else in the batch. Knows nothing of models, caches or schedules.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import torch

from inference.engine.batch import RawLogprobs
from inference.engine.sampling.draw import drawn
from inference.engine.sampling.edits import LogitEdits, edits_anything
from inference.engine.sampling.filters import Filters, filtered
from inference.engine.sampling.logprobs import raw_logprobs
from inference.engine.sampling.uniform import uniform
from inference.engine.sequence import Sequence, SequenceId
from inference.errors import EngineError
from inference.generation import SamplingParams

_COLDEST = 1e-5


class Sampler:
    """Used from one thread. `salt` feeds the sequences that bring no seed."""

    def __init__(self, vocab_size: int, *, salt: str | None = None) -> None:
        self._edits = LogitEdits(vocab_size)
        self._salt = salt or secrets.token_hex(16)

    def forget(self, seq_ids: Iterable[SequenceId]) -> None:
        self._edits.forget(seq_ids)

    def sample(
        self, logits: torch.Tensor, sequences: list[Sequence]
    ) -> tuple[list[int], list[RawLogprobs | None]]:
        """A token for each row of `logits` [R, V], float32, which may be overwritten.

        Raises `EngineError` where a row is not numbers, as weights that overflow give.
        """
        if not sequences:
            return [], []
        _check_finite(logits)
        reported = [row for row, each in enumerate(sequences) if each.params.logprobs is not None]
        own = logits[reported]
        if any(map(edits_anything, sequences)):
            self._edits.apply(logits, sequences)
        tokens = self._chosen(logits, sequences)
        return tokens, _reports(own, reported, tokens, sequences)

    def _chosen(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        tokens = logits.argmax(-1)
        rows = [row for row, each in enumerate(sequences) if not is_greedy(each.params)]
        if rows:
            tokens[rows] = self._random(logits[rows], [sequences[row] for row in rows])
        found: list[int] = tokens.tolist()
        return found

    def _random(self, logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        params = [sequence.params for sequence in sequences]
        temperatures = torch.tensor([each.temperature for each in params], device=logits.device)
        cooled = (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]
        filters = [Filters(each.top_k, each.top_p, each.min_p) for each in params]
        weights = filtered(cooled.exp_(), filters)
        numbers = [self._number(sequence) for sequence in sequences]
        return drawn(weights, torch.tensor(numbers, dtype=torch.float64, device=logits.device))

    def _number(self, sequence: Sequence) -> float:
        seed = sequence.params.seed
        own = f"{self._salt}:{sequence.seq_id}" if seed is None else str(seed)
        return uniform(own, sequence.num_tokens)


def is_greedy(params: SamplingParams) -> bool:
    """A temperature of 0 or next to it, or a choice among one."""
    return params.temperature < _COLDEST or params.top_k == 1


def _reports(
    own: torch.Tensor, rows: list[int], tokens: list[int], sequences: list[Sequence]
) -> list[RawLogprobs | None]:
    found: list[RawLogprobs | None] = [None] * len(sequences)
    if rows:
        counts = [sequences[row].params.logprobs or 0 for row in rows]
        for row, report in zip(
            rows, raw_logprobs(own, [tokens[r] for r in rows], counts), strict=True
        ):
            found[row] = report
    return found


def _check_finite(logits: torch.Tensor) -> None:
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        msg = "the model gave logits that are no numbers"
        raise EngineError(msg)
