"""How many prompt tokens a pass may hold, so that it takes no longer than it should.

A pass cannot be interrupted: everyone who streams waits for its end, and so does an abort. What
tokens cost is learnt from the passes themselves, since it depends on machine, model and contexts.
Knows numbers only.
"""

from __future__ import annotations

from inference.engine.config import EngineConfig

# However slow decoding is, prompts must get on.
LEAST_PREFILL = 16
# Seconds a prompt token costs until one has been measured: rather too many than too few.
FIRST_GUESS = 1e-3
# A pass that took too long changes the estimate more than one that was quick.
WEIGHT_OF_SLOW, WEIGHT_OF_QUICK = 0.5, 0.15


class StepBudget:
    """For one engine. Without `config.step_seconds` only `config.step_tokens` is a limit."""

    def __init__(self, config: EngineConfig) -> None:
        self._most = config.step_tokens
        self._seconds = config.step_seconds
        self._token_seconds = FIRST_GUESS
        self._decode_seconds = 0.0
        self._decodes_measured = 1

    def prefill_tokens(self, num_decodes: int) -> int:
        """How many prompt tokens fit into a pass that decodes `num_decodes` sequences."""
        most = self._most - num_decodes
        if self._seconds is None:
            return most
        spare = self._seconds - self._decode_cost(num_decodes)
        return min(most, max(LEAST_PREFILL, int(spare / self._token_seconds)))

    def learn(self, *, num_tokens: int, num_decodes: int, seconds: float) -> None:
        """What a pass took. Small chunks say little about the cost of a token and are passed by."""
        prefill = num_tokens - num_decodes
        if prefill == 0:
            self._decode_seconds = _smooth(self._decode_seconds, seconds)
            self._decodes_measured = max(num_decodes, 1)
        elif prefill >= LEAST_PREFILL:
            spent = max(seconds - self._decode_cost(num_decodes), seconds * 0.1)
            self._token_seconds = _smooth(self._token_seconds, spent / prefill)

    def _decode_cost(self, num_decodes: int) -> float:
        """Most of a small batch's cost is the same for one sequence as for all of them."""
        if num_decodes == 0:
            return 0.0
        return self._decode_seconds * max(1.0, num_decodes / self._decodes_measured)


def _smooth(old: float, new: float) -> float:
    weight = WEIGHT_OF_SLOW if new > old else WEIGHT_OF_QUICK
    return old + weight * (new - old)
