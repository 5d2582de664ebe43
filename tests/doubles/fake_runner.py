"""A runner without tensors that still checks the cache: it stores tokens where keys would lie.

Each pass reads a sequence's whole past out of its blocks, as attention would, and fails if
anything there is not that sequence's own. So a test that runs through it proves that blocks
were never shared wrongly, freed too early or published uncomputed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from inference.engine.batch import Batch, Chunk, RawLogprobs, Sampled
from inference.engine.sequence import Sequence, SequenceId

Choose = Callable[[Sequence], int]


class CacheMismatchError(AssertionError):
    """A block does not hold what the sequence needs."""


class FakeRunner:
    """Satisfies `inference.engine.batch.Runner`.

    `choose` gives a sequence's next token; by default one that depends on all of its tokens
    and on nothing else, as a greedy model's would. `fail_next`: raised by the next pass, after
    it has written to the cache.
    """

    def __init__(
        self, *, block_size: int, vocab_size: int = 260, choose: Choose | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.batches: list[Batch] = []
        self.forgotten: list[SequenceId] = []
        self.resets = 0
        self.fail_next: Exception | None = None
        self._block_size = block_size
        self._choose = choose or self.letter
        self._cache: dict[tuple[int, int], int] = {}

    def run(self, batch: Batch) -> Sampled:
        self.batches.append(batch)
        for chunk in batch.chunks:
            self._write(chunk)
        if self.fail_next is not None:
            problem, self.fail_next = self.fail_next, None
            raise problem
        for chunk in batch.chunks:
            self._check_past(chunk)
        tokens = [self._choose(chunk.sequence) for chunk in batch.sampling]
        return Sampled(
            token_ids=tokens,
            logprobs=[
                self._logprob(token, chunk.sequence.params.logprobs)
                for token, chunk in zip(tokens, batch.sampling, strict=True)
            ],
            prompt_logprobs={
                chunk.sequence.seq_id: self._prompt_logprobs(chunk)
                for chunk in batch.chunks
                if chunk.prompt_positions
            },
        )

    def forget(self, seq_ids: Iterable[SequenceId]) -> None:
        self.forgotten += seq_ids

    def reset_cache(self) -> None:
        self.resets += 1

    def letter(self, sequence: Sequence) -> int:
        """A lower-case letter that all tokens so far decide."""
        tokens = repr(sequence.token_ids(0, sequence.num_tokens)).encode()
        return ord("a") + hashlib.sha256(tokens).digest()[0] % 26

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self._block_size)
        return sequence.block_ids[block], offset

    def _write(self, chunk: Chunk) -> None:
        for position, token in enumerate(chunk.token_ids, start=chunk.start):
            self._cache[self._slot(chunk.sequence, position)] = token

    def _check_past(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        found = [self._cache.get(self._slot(sequence, at)) for at in range(chunk.end)]
        if found != sequence.token_ids(0, chunk.end):
            raise CacheMismatchError(f"{sequence} would read another's keys")

    def _logprob(self, token_id: int, top: int | None) -> RawLogprobs | None:
        if top is None:
            return None
        others = [(token_id + step) % self.vocab_size for step in range(top)]
        return RawLogprobs(
            token_id=token_id,
            logprob=-1.0,
            top_ids=tuple(others),
            top_logprobs=tuple(-1.0 - step for step in range(top)),
        )

    def _prompt_logprobs(self, chunk: Chunk) -> list[RawLogprobs]:
        sequence = chunk.sequence
        top = sequence.params.prompt_logprobs
        entries = [
            self._logprob(sequence.prompt_ids[position + 1], top)
            for position in chunk.prompt_positions
        ]
        return [entry for entry in entries if entry is not None]
