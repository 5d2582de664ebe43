"""The sizes that an engine is built with. Knows no environment: the worker fills it in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of one engine. Raises `ValueError` for sizes that could never work.

    `max_running` slots; `max_queued` sequences that wait for one; `kv_tokens` of KV cache in
    blocks of `block_size` tokens; `step_tokens` at most in one forward pass, and fewer prompt
    tokens where it would take longer than `step_seconds`; `max_model_len` tokens of prompt and
    output together.
    """

    max_running: int = 64
    max_queued: int = 10_000
    kv_tokens: int = 65_536
    step_tokens: int = 512
    step_seconds: float | None = None
    block_size: int = 32
    max_model_len: int = 2048
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        self._check_positive()
        if self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens ({self.kv_tokens}) is less than one block")
        if self.step_tokens < self.max_running:
            # Otherwise a full house could not decode one token each in a step.
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_running"
                f" ({self.max_running}): each running sequence decodes one token a step"
            )

    @property
    def num_blocks(self) -> int:
        return self.kv_tokens // self.block_size

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that one sequence may come to: what context and cache both allow.

        The last token is never fed back, so it needs no place in the cache.
        """
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)

    def _check_positive(self) -> None:
        sizes = ("max_running", "max_queued", "step_tokens", "block_size", "max_model_len")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.step_seconds is not None and self.step_seconds <= 0:
            raise ValueError(f"step_seconds must be more than 0, not {self.step_seconds}")
