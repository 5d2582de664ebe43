"""Decides which tokens of which sequences go into the next forward pass.

A sequence waits, runs (has a slot and blocks) or is unknown here; a preempted one waits again,
with its tokens and at its old rank. Each step takes one token of every sequence that decodes,
then fills the token budget with prefill chunks. Blocks for all known tokens are taken when a
sequence gets its slot, so only decoding can run out of them, and then the last in rank gives
up its own. Knows nothing of texts, requests or tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from inference.engine.batch import Batch, Chunk, Sampled
from inference.engine.block_pool import BlockPool
from inference.engine.budget import StepBudget
from inference.engine.config import EngineConfig
from inference.engine.sequence import Sequence, SequenceId
from inference.engine.waiting import WaitingQueue


class Scheduler:
    """Used from one thread: `schedule`, run the batch, `commit`; `add` and `remove` between."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self._config = config
        self._pool = pool
        self._budget = StepBudget(config)
        self._waiting = WaitingQueue()
        self._running: dict[SequenceId, Sequence] = {}

    @property
    def queue_len(self) -> int:
        return len(self._waiting)

    @property
    def running_len(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._running) or len(self._waiting) > 0

    def sequences(self) -> Iterator[Sequence]:
        """All of them, running ones first."""
        yield from self._running.values()
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Let it wait for a slot. Its longest form must fit into the pool (`fits`)."""
        if sequence.seq_id in self._running:
            raise ValueError(f"sequence {sequence.seq_id} runs already")
        if not self.fits(sequence):
            raise ValueError(f"{sequence} could never run: the cache is too small")
        self._waiting.push(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Alone, it could run to its end."""
        return self._pool.blocks_for(sequence.max_cached_tokens) <= self._pool.num_blocks

    def remove(self, seq_id: SequenceId) -> Sequence | None:
        """Take a sequence out, whatever it does; its slot and blocks are free on return.

        It is never scheduled again, and the order of the others stays. None if unknown.
        """
        sequence = self._running.pop(seq_id, None)
        if sequence is None:
            return self._waiting.remove(seq_id)
        self._release(sequence)
        return sequence

    def schedule(self) -> Batch:
        """The next step's batch; empty only if there is no sequence."""
        batch = Batch()
        self._schedule_decodes(batch)
        batch.num_decodes = len(batch.chunks)
        self._schedule_prefills(batch)
        return batch

    def commit(self, batch: Batch, sampled: Sampled) -> None:
        """Take over what was computed and sampled; full blocks become findable.

        Sequences that were removed since `schedule` are passed over.
        """
        tokens = iter(sampled.token_ids)
        for chunk in batch.chunks:
            token = next(tokens) if chunk.samples else None
            sequence = chunk.sequence
            if self._running.get(sequence.seq_id) is sequence:
                sequence.prompt_logprobs += sampled.prompt_logprobs.get(sequence.seq_id, ())
                self._advance(chunk, token)

    def learn(self, batch: Batch, seconds: float) -> None:
        """The pass over `batch` took so long: the next ones are cut to measure."""
        self._budget.learn(
            num_tokens=batch.num_tokens, num_decodes=batch.num_decodes, seconds=seconds
        )

    def check_integrity(self) -> None:
        """Raises `AssertionError` if slots or blocks do not add up. For tests and after faults."""
        self._pool.check_integrity()
        holders = [0] * self._pool.num_blocks
        for sequence in self._running.values():
            self._check_running(sequence)
            for block_id in sequence.block_ids:
                holders[block_id] += 1
        found = [self._pool.holders(block_id) for block_id in range(self._pool.num_blocks)]
        _require(holders == found, "blocks are held by none that runs")
        _require(len(self._running) <= self._config.max_running, "more run than there are slots")
        for sequence in self._waiting:
            _require(not sequence.block_ids and not sequence.num_computed, f"{sequence} waits")
            _require(sequence.seq_id not in self._running, f"{sequence} waits and runs")

    def _check_running(self, sequence: Sequence) -> None:
        room = len(sequence.block_ids) * self._pool.block_size
        _require(sequence.num_computed <= room, f"{sequence} is longer than its blocks")
        _require(len(set(sequence.block_ids)) == len(sequence.block_ids), f"{sequence} shares")
        _require(sequence.num_pending > 0 or sequence.remaining < 1, f"{sequence} is stuck")

    def _schedule_decodes(self, batch: Batch) -> None:
        order = self._by_rank()
        at = 0
        while at < len(order):
            sequence = order[at]
            at += 1
            if sequence.num_pending == 1 and self._make_room(sequence, order, batch):
                batch.append(sequence, 1)

    def _make_room(self, sequence: Sequence, order: list[Sequence], batch: Batch) -> bool:
        """Give it the block for its next token, at the cost of the last in `order`.

        The last may be itself; then False. None before it in `order` is touched.
        """
        needed = self._pool.blocks_for(sequence.num_tokens) - len(sequence.block_ids)
        while self._pool.num_free < needed:
            victim = order.pop()
            self._preempt(victim)
            batch.preempted.append(victim)
            if victim is sequence:
                return False
        sequence.block_ids += self._pool.allocate(needed)
        return True

    def _schedule_prefills(self, batch: Batch) -> None:
        started = deque(sequence for sequence in self._by_rank() if sequence.num_pending > 1)
        # Who was just preempted must not take its blocks back in the same step.
        admitting = not batch.preempted
        most = batch.num_decodes + self._budget.prefill_tokens(batch.num_decodes)
        while (budget := most - batch.num_tokens) > 0:
            head = self._head() if admitting else None
            if head is not None and not (started and started[0].rank < head.rank):
                admitting = self._admit(head, batch)
                if not admitting:
                    continue
                sequence = head
            elif started:
                sequence = started.popleft()
            else:
                break
            batch.append(sequence, min(budget, sequence.num_pending))

    def _head(self) -> Sequence | None:
        has_slot = len(self._running) < self._config.max_running
        return self._waiting.peek() if has_slot else None

    def _admit(self, sequence: Sequence, batch: Batch) -> bool:
        """Give a waiting one a slot and blocks for all its tokens, or leave it as it is."""
        shared = self._match(sequence)
        needed = self._pool.blocks_for(sequence.num_tokens) - len(shared)
        if needed + self._reserve() > self._pool.num_free:
            self._pool.free(shared)
            return False
        self._waiting.remove(sequence.seq_id)
        self._running[sequence.seq_id] = sequence
        sequence.block_ids = shared + self._pool.allocate(needed)
        sequence.num_published = len(shared)
        sequence.num_computed = len(shared) * self._pool.block_size
        self._note_start(sequence, batch)
        return True

    def _note_start(self, sequence: Sequence, batch: Batch) -> None:
        if sequence.was_scheduled:
            batch.resumed.append(sequence)
            return
        sequence.was_scheduled = True
        sequence.num_cached_prompt = sequence.num_computed
        batch.scheduled_first.append(sequence)

    def _match(self, sequence: Sequence) -> list[int]:
        """Blocks of others that hold the same prefix; at least one token is left to compute."""
        if sequence.cache_root != self._pool.root:
            sequence.cache_root, sequence.block_hashes = self._pool.root, []
        if not self._pool.caching or sequence.wants_prompt_logprobs:
            return []
        self._extend_hashes(sequence, sequence.num_tokens)
        return self._pool.match(
            sequence.block_hashes[: (sequence.num_tokens - 1) // self._pool.block_size]
        )

    def _reserve(self) -> int:
        """Blocks that those who run will soon need: a newcomer would be their first victim."""
        blocks_for = self._pool.blocks_for
        return sum(
            blocks_for(sequence.max_cached_tokens) > len(sequence.block_ids)
            for sequence in self._running.values()
        )

    def _advance(self, chunk: Chunk, token: int | None) -> None:
        sequence = chunk.sequence
        sequence.num_computed = chunk.end
        self._publish(sequence)
        if token is not None:
            sequence.output_ids.append(token)

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.num_computed // self._pool.block_size
        if not self._pool.caching or full <= sequence.num_published:
            return
        if sequence.cache_root != self._pool.root:
            return  # the cache was reset since it began: its content is of the past
        self._extend_hashes(sequence, sequence.num_computed)
        for index in range(sequence.num_published, full):
            self._pool.publish(sequence.block_ids[index], sequence.block_hashes[index])
        sequence.num_published = full

    def _extend_hashes(self, sequence: Sequence, end: int) -> None:
        start = len(sequence.block_hashes) * self._pool.block_size
        if end - start >= self._pool.block_size:
            tokens = sequence.token_ids(start, end)
            sequence.block_hashes = self._pool.extend_hashes(sequence.block_hashes, tokens)

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.seq_id]
        self._release(sequence)
        sequence.preemptions += 1
        self._waiting.push(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed = 0

    def _by_rank(self) -> list[Sequence]:
        return sorted(self._running.values(), key=lambda sequence: sequence.rank)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)
