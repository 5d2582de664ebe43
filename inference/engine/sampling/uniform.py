"""Random numbers without state: one uniform for each (seed, place), the same every time.

So a seeded sequence draws the same numbers alone, in any batch, after a preemption, and when its
prompt and partial answer are sent again. The stream is our own and promises no likeness to
torch's generators.
"""

from __future__ import annotations

import hashlib

_BITS = 53


def uniform(seed: str, place: int) -> float:
    """A number in [0, 1), from a hash of the seed and the token's place in its sequence."""
    digest = hashlib.blake2b(f"{seed}:{place}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> (64 - _BITS)) / (1 << _BITS)
