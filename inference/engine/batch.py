"""What one forward pass is asked to do, what it answers, and who does it.

The seam between scheduling and tensors: the scheduler makes a `Batch`, a `Runner` turns it into
`Sampled`. Neither knows how the other works.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from inference.engine.sequence import Sequence, SequenceId


@dataclass(slots=True, frozen=True)
class Chunk:
    """Tokens [start, start + length) of a sequence, to be computed in this pass.

    `samples`: the logits of its last token give the sequence's next token.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def token_ids(self) -> list[int]:
        return self.sequence.token_ids(self.start, self.end)

    @property
    def prompt_positions(self) -> range:
        """Positions whose logits give prompt logprobs that are asked for and not known yet.

        The logits at position p are about prompt token p + 1.
        """
        if not self.sequence.wants_prompt_logprobs:
            return range(0)
        first = max(self.start, len(self.sequence.prompt_logprobs))
        return range(first, max(first, min(self.end, self.sequence.num_prompt - 1)))


@dataclass(slots=True)
class Batch:
    """The chunks of one step: first `num_decodes` of one token each, then prefill chunks.

    `preempted` lost their blocks in this schedule and are in no chunk; `scheduled_first` run
    for the first time, `resumed` again after a preemption.
    """

    chunks: list[Chunk] = field(default_factory=list)
    num_tokens: int = 0
    num_decodes: int = 0
    preempted: list[Sequence] = field(default_factory=list)
    scheduled_first: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)

    def append(self, sequence: Sequence, length: int) -> None:
        """Add the next `length` tokens of `sequence`."""
        end = sequence.num_computed + length
        samples = end == sequence.num_tokens and sequence.remaining > 0
        self.chunks.append(Chunk(sequence, sequence.num_computed, length, samples))
        self.num_tokens += length

    @property
    def sampling(self) -> list[Chunk]:
        """The chunks that give a token, in order: `Sampled` has one entry for each."""
        return [chunk for chunk in self.chunks if chunk.samples]


@dataclass(slots=True, frozen=True)
class RawLogprobs:
    """A token's natural-log probability and the most likely ones at its place, best first."""

    token_id: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True)
class Sampled:
    """The answer to a batch.

    `token_ids` and `logprobs`: one entry per sampling chunk, in order; a logprob is None where
    `params.logprobs` is. `prompt_logprobs`: for each sequence with such a chunk, one entry per
    position of `Chunk.prompt_positions`, about the prompt token after it.
    """

    token_ids: list[int]
    logprobs: list[RawLogprobs | None]
    prompt_logprobs: dict[SequenceId, list[RawLogprobs]] = field(default_factory=dict)


def check_answer(batch: Batch, sampled: Sampled) -> None:
    """Raises `ValueError` if `sampled` does not answer `batch`."""
    expected = len(batch.sampling)
    if not len(sampled.token_ids) == len(sampled.logprobs) == expected:
        raise ValueError(f"{len(sampled.token_ids)} tokens sampled, not {expected}")
    for chunk in batch.chunks:
        found = sampled.prompt_logprobs.get(chunk.sequence.seq_id, [])
        if len(found) != len(chunk.prompt_positions):
            raise ValueError(f"{len(found)} prompt logprobs for {chunk.prompt_positions}")


class Runner(Protocol):
    """Model, cache and sampler behind one call. Used from one thread.

    While `len(output_ids) < params.min_tokens` it must not sample `eos_ids` or
    `params.stop_token_ids`.
    """

    @property
    def vocab_size(self) -> int:
        """Token ids below this are valid as input."""

    def run(self, batch: Batch) -> Sampled:
        """Compute every chunk, write its keys and values into its blocks, sample."""

    def forget(self, seq_ids: Iterable[SequenceId]) -> None:
        """Drop what is kept per sequence (generators, counts). Unknown ids are skipped.

        Called once a sequence has ended, not on preemption.
        """

    def reset_cache(self) -> None:
        """The prefix cache was emptied: drop what depends on cached content."""
