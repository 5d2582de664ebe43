"""How many threads a pass over few tokens takes: one, where memory is the limit and not arithmetic.

A few tokens' products read every weight once. Where one core reads as fast as all together, more
threads only wait for each other, and the core that is left over serves others. It is tried out in
the first passes, both ways in turn. Results do not depend on it. Knows no model.
"""

from __future__ import annotations

_FEW = 4  # tokens
_TRIALS = 8  # passes each way; the quickest counts, so a disturbed one does no harm
_WORTH = 1.15  # how much slower one thread may be, for the core that it leaves


class ThreadChoice:
    """Of one model. Used from one thread."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool], list[float]] = {}
        self._settled: dict[int, bool] = {}

    def threads(self, tokens: int, most: int) -> int:
        """For the next pass over that many tokens."""
        if tokens > _FEW or most == 1:
            return most
        if tokens not in self._settled:
            behind = self._count(tokens, alone=True) <= self._count(tokens, alone=False)
            return 1 if behind else most
        return 1 if self._settled[tokens] else most

    def took(self, tokens: int, threads: int, seconds: float) -> None:
        """What the pass took; ignored once the choice is made."""
        if tokens > _FEW or tokens in self._settled:
            return
        self._times.setdefault((tokens, threads == 1), []).append(seconds)
        if min(self._count(tokens, alone=alone) for alone in (True, False)) >= _TRIALS:
            one, all_of_them = (min(self._times[tokens, alone]) for alone in (True, False))
            self._settled[tokens] = one <= _WORTH * all_of_them

    def _count(self, tokens: int, *, alone: bool) -> int:
        return len(self._times.get((tokens, alone), ()))
