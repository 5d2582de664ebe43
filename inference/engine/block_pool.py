"""The blocks of the KV cache: who holds which, and which content can be shared.

A block is free (nothing in it), kept (free, but its content is in the prefix cache) or held by
one or more sequences. Full blocks are published under a hash that is chained over all tokens
before them, so an equal hash means an equal prefix. Kept blocks are taken for new content only
when no empty one is left, the least recently used first. Knows nothing of tensors or sequences.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, numbered from 0."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self._holders = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._kept: dict[int, None] = {}  # least recently used first
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._resets = 0
        self.root = _root(self._resets)

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Free blocks whose content can still be found."""
        return len(self._kept)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def holders(self, block_id: int) -> int:
        """How many sequences hold the block."""
        return self._holders[block_id]

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for new content. Raises `OutOfBlocksError` and then takes none."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
        return [self._take() for _ in range(count)]

    def free(self, block_ids: Sequence[int]) -> None:
        """Give up one hold on each. The last blocks of a sequence are reused first."""
        for block_id in reversed(block_ids):
            if self._holders[block_id] < 1:
                raise ValueError(f"block {block_id} is not held")
            self._holders[block_id] -= 1
            if self._holders[block_id] == 0:
                self._set_free(block_id)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Hold and return the blocks of the longest known run of `hashes` from its start."""
        found: list[int] = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            self._kept.pop(block_id, None)
            self._holders[block_id] += 1
            found.append(block_id)
        return found

    def match_prefix(self, token_ids: Sequence[int]) -> list[int]:
        """`match` for the full blocks of `token_ids`."""
        return self.match(self.extend_hashes([], token_ids))

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Let others find the content of a held, full, computed block.

        Where that content is known already, the older block stays the one that is found.
        """
        if not self.caching or block_hash in self._block_of or block_id in self._hash_of:
            return
        self._block_of[block_hash] = block_id
        self._hash_of[block_id] = block_hash

    def extend_hashes(self, known: list[bytes], token_ids: Sequence[int]) -> list[bytes]:
        """`known` and the hashes of the full blocks of `token_ids`, which come right after it."""
        hashes = list(known)
        last = hashes[-1] if hashes else self.root
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            last = _chain(last, token_ids[start : start + self.block_size])
            hashes.append(last)
        return hashes

    def reset_cache(self) -> int:
        """Forget all content; held blocks stay held. Returns how many blocks were forgotten.

        The root changes: what older sequences publish from now on is found by none after them.
        """
        forgotten = len(self._hash_of)
        self._empty.extend(self._kept)
        self._kept.clear()
        self._block_of.clear()
        self._hash_of.clear()
        self._resets += 1
        self.root = _root(self._resets)
        return forgotten

    def check_integrity(self) -> None:
        """Raises `AssertionError` if a block is lost, counted twice or wrongly findable."""
        held = {block for block, holders in enumerate(self._holders) if holders}
        groups = (held, set(self._empty), set(self._kept))
        _require(min(self._holders, default=0) >= 0, "a block has a negative count")
        _require(len(set().union(*groups)) == self.num_blocks, "a block is lost")
        _require(sum(map(len, groups)) == self.num_blocks, "a block is in two places")
        _require(len(self._empty) == len(groups[1]), "a block is empty twice")
        _require(
            self._hash_of == {block: known for known, block in self._block_of.items()},
            "hashes and blocks do not match",
        )
        _require(groups[2] <= self._hash_of.keys(), "a kept block has no hash")
        _require(not groups[1] & self._hash_of.keys(), "an empty block can be found")

    def _take(self) -> int:
        block_id = self._empty.pop() if self._empty else self._evict()
        self._holders[block_id] = 1
        return block_id

    def _evict(self) -> int:
        block_id = next(iter(self._kept))
        del self._kept[block_id]
        del self._block_of[self._hash_of.pop(block_id)]
        return block_id

    def _set_free(self, block_id: int) -> None:
        if block_id in self._hash_of:
            self._kept[block_id] = None
        else:
            self._empty.append(block_id)


def _root(resets: int) -> bytes:
    return hashlib.sha256(b"blocks %d" % resets).digest()


def _chain(before: bytes, token_ids: Sequence[int]) -> bytes:
    # Not Python's hash(): equal hashes of unequal prefixes would mix two users' contexts.
    return hashlib.sha256(before + array("q", token_ids).tobytes()).digest()


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)
