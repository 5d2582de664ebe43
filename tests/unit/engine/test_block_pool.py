"""The block pool alone: what is free, what is shared, what can be found."""

from __future__ import annotations

import random

import pytest

from inference.engine.block_pool import BlockPool, OutOfBlocksError


def make_pool(num_blocks: int = 4, block_size: int = 2, *, caching: bool = True) -> BlockPool:
    return BlockPool(num_blocks, block_size, caching=caching)


def publish(pool: BlockPool, token_ids: list[int]) -> list[int]:
    """Hold blocks with these tokens' content, all full ones findable."""
    block_ids = pool.allocate(pool.blocks_for(len(token_ids)))
    for block_id, block_hash in zip(block_ids, pool.extend_hashes([], token_ids), strict=False):
        pool.publish(block_id, block_hash)
    return block_ids


def test_it_gives_out_each_block_once() -> None:
    pool = make_pool(4)
    assert sorted(pool.allocate(3) + pool.allocate(1)) == [0, 1, 2, 3]
    pool.check_integrity()


def test_it_takes_nothing_when_not_enough_is_free() -> None:
    pool = make_pool(4)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(5)
    assert pool.num_free == 4


def test_it_refuses_to_free_what_nobody_holds() -> None:
    pool = make_pool()
    (block_id,) = pool.allocate(1)
    pool.free([block_id])
    with pytest.raises(ValueError, match="not held"):
        pool.free([block_id])


def test_it_finds_the_longest_known_prefix_in_full_blocks() -> None:
    pool = make_pool()
    first = publish(pool, [1, 2, 3, 4, 5])
    assert pool.match_prefix([1, 2, 3, 4, 9, 9]) == first[:2]
    assert pool.match_prefix([1, 2, 3]) == first[:1]
    assert pool.match_prefix([2, 1, 3, 4]) == []
    assert pool.holders(first[0]) == 3


def test_it_tells_equal_blocks_after_unequal_prefixes_apart() -> None:
    pool = make_pool()
    publish(pool, [1, 1, 7, 7])
    assert len(pool.match_prefix([2, 2, 7, 7])) == 0


def test_it_counts_kept_blocks_as_free_and_finds_them_again() -> None:
    pool = make_pool()
    blocks = publish(pool, [1, 2, 3, 4])
    pool.free(blocks)
    assert (pool.num_free, pool.num_kept) == (4, 2)
    assert pool.match_prefix([1, 2, 3, 4]) == blocks
    assert (pool.num_free, pool.num_kept) == (2, 0)
    pool.check_integrity()


def test_a_block_stays_held_until_its_last_holder_frees_it() -> None:
    pool = make_pool()
    first = publish(pool, [1, 2])
    second = pool.match_prefix([1, 2])
    pool.free(first)
    assert pool.holders(second[0]) == 1
    assert pool.num_free == 3
    pool.free(second)
    assert pool.num_free == 4


def test_it_uses_empty_blocks_before_kept_ones_and_the_oldest_kept_first() -> None:
    pool = make_pool(4)
    old, young = publish(pool, [1, 2]), publish(pool, [3, 4])
    pool.free(old)
    pool.free(young)
    assert not {*old, *young} & {*pool.allocate(2)}
    assert pool.allocate(1) == old
    assert pool.match_prefix([1, 2]) == []
    assert pool.match_prefix([3, 4]) == young
    pool.check_integrity()


def test_a_match_makes_a_kept_block_recently_used() -> None:
    pool = make_pool(2)
    for tokens in ([1, 2], [3, 4]):
        pool.free(publish(pool, tokens))
    pool.free(pool.match_prefix([1, 2]))
    pool.allocate(1)
    assert pool.match_prefix([1, 2]) != []
    assert pool.match_prefix([3, 4]) == []


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    pool = make_pool(2)
    blocks = publish(pool, [1, 2, 3, 4])
    pool.free(blocks)
    pool.allocate(1)
    assert pool.match_prefix([1, 2, 3, 4]) == blocks[:1]


def test_content_published_twice_is_found_in_the_older_block() -> None:
    pool = make_pool()
    older, younger = publish(pool, [1, 2]), publish(pool, [1, 2])
    assert pool.match_prefix([1, 2]) == older
    pool.free(younger)
    assert pool.num_kept == 0
    pool.check_integrity()


def test_a_reset_forgets_all_content_and_keeps_what_is_held() -> None:
    pool = make_pool()
    held, kept = publish(pool, [1, 2]), publish(pool, [3, 4])
    pool.free(kept)
    assert pool.reset_cache() == 2
    assert (pool.num_free, pool.num_kept, pool.holders(held[0])) == (3, 0, 1)
    assert pool.match_prefix([1, 2]) == pool.match_prefix([3, 4]) == []
    pool.check_integrity()


def test_after_a_reset_old_hashes_lead_nowhere() -> None:
    pool = make_pool()
    old = pool.extend_hashes([], [1, 2])
    pool.reset_cache()
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, old[0])
    assert pool.match_prefix([1, 2]) == []


def test_without_caching_nothing_is_kept() -> None:
    pool = make_pool(caching=False)
    pool.free(publish(pool, [1, 2, 3, 4]))
    assert (pool.num_kept, pool.match_prefix([1, 2])) == (0, [])


def test_hashes_can_be_made_piece_by_piece() -> None:
    pool = make_pool()
    tokens = [5, 6, 7, 8, 9, 10]
    whole, first = pool.extend_hashes([], tokens), pool.extend_hashes([], tokens[:2])
    assert pool.extend_hashes(first, tokens[2:]) == whole
    assert first == whole[:1]


def test_integrity_notices_a_lost_block() -> None:
    pool = make_pool()
    pool._empty.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()


def test_it_adds_up_after_any_history() -> None:
    chance = random.Random(7)
    pool = make_pool(12)
    holds: list[list[int]] = []
    for _ in range(400):
        if holds and chance.random() < 0.5:
            pool.free(holds.pop(chance.randrange(len(holds))))
        else:
            tokens = [chance.randrange(2) for _ in range(chance.randrange(1, 7))]
            found = pool.match_prefix(tokens)
            holds.append(found)
            if not found and pool.num_free >= pool.blocks_for(len(tokens)):
                holds.append(publish(pool, tokens))
        pool.check_integrity()
    for hold in holds:
        pool.free(hold)
    assert pool.num_free == 12
