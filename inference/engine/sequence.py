"""One sequence: a prompt, what was sampled after it, and where its keys and values lie.

One per choice of a request. The scheduler moves it, the engine ends it, the runner reads it;
grouping sequences into requests, deadlines and clients are the worker's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from inference.generation import SamplingParams

if TYPE_CHECKING:
    from inference.engine.batch import RawLogprobs

SequenceId: TypeAlias = int
Rank: TypeAlias = tuple[int, int]


class Sequence:
    """The state of one sequence in the engine. Lists are token ids and block ids.

    `num_computed`: tokens, from the start, whose keys and values are in the cache.
    `prompt_logprobs`: entry i is about prompt token i + 1 (the first one has no probability).
    `block_hashes`: of its full blocks, chained from `cache_root`; `num_published` of them are
    in the prefix cache.
    """

    __slots__ = (
        "arrival",
        "block_hashes",
        "block_ids",
        "cache_root",
        "eos_ids",
        "max_new_tokens",
        "num_cached_prompt",
        "num_computed",
        "num_published",
        "output_ids",
        "params",
        "preemptions",
        "priority",
        "prompt_ids",
        "prompt_logprobs",
        "seq_id",
        "was_scheduled",
    )

    def __init__(
        self,
        *,
        seq_id: SequenceId,
        prompt_ids: list[int],
        params: SamplingParams,
        eos_ids: frozenset[int],
        max_new_tokens: int,
        priority: int = 0,
        arrival: int = 0,
    ) -> None:
        self.seq_id = seq_id
        self.prompt_ids = prompt_ids
        self.params = params
        self.eos_ids = eos_ids
        self.max_new_tokens = max_new_tokens
        self.priority = priority
        self.arrival = arrival
        self.output_ids: list[int] = []
        self.prompt_logprobs: list[RawLogprobs] = []
        self.num_computed = 0
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.cache_root = b""
        self.num_published = 0
        self.num_cached_prompt = 0
        self.preemptions = 0
        self.was_scheduled = False

    @property
    def rank(self) -> Rank:
        """The lower goes first: higher priority, then earlier arrival."""
        return (-self.priority, self.arrival)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not in the cache: 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def remaining(self) -> int:
        """Tokens that it may still sample."""
        return self.max_new_tokens - len(self.output_ids)

    @property
    def max_cached_tokens(self) -> int:
        """Tokens in the cache at its longest; the last token is never fed back."""
        return self.num_prompt + max(self.max_new_tokens - 1, 0)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some of the prompt's probabilities are asked for and not known yet."""
        asked = self.params.prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < self.num_prompt - 1

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output together."""
        prompt = len(self.prompt_ids)
        if end <= prompt:
            return self.prompt_ids[start:end]
        if start >= prompt:
            return self.output_ids[start - prompt : end - prompt]
        return self.prompt_ids[start:] + self.output_ids[: end - prompt]

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.num_prompt}+{len(self.output_ids)} tokens,"
            f" {self.num_computed} computed)"
        )
