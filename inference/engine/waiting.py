"""The sequences that wait for a slot, best rank first, removable by id.

A heap whose removed entries stay until they come up or outnumber the live ones, so that every
operation is O(log n) on average and no removal moves the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from inference.engine.sequence import Rank, Sequence, SequenceId


class WaitingQueue:
    """Order is by `Sequence.rank`, which must be unique and not change while it waits."""

    def __init__(self) -> None:
        self._sequences: dict[SequenceId, Sequence] = {}
        self._heap: list[tuple[Rank, SequenceId]] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def push(self, sequence: Sequence) -> None:
        if sequence.seq_id in self._sequences:
            raise ValueError(f"sequence {sequence.seq_id} waits already")
        self._sequences[sequence.seq_id] = sequence
        heapq.heappush(self._heap, (sequence.rank, sequence.seq_id))

    def peek(self) -> Sequence | None:
        """The one that is next, or None."""
        while self._heap:
            sequence = self._live(self._heap[0])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def remove(self, seq_id: SequenceId) -> Sequence | None:
        """Take one out, wherever it stands. None if it does not wait here."""
        sequence = self._sequences.pop(seq_id, None)
        if self._heap and self._heap[0][1] == seq_id:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._sequences) + 16:
            self._drop_removed()
        return sequence

    def _drop_removed(self) -> None:
        self._heap = list({entry for entry in self._heap if self._live(entry) is not None})
        heapq.heapify(self._heap)

    def _live(self, entry: tuple[Rank, SequenceId]) -> Sequence | None:
        rank, seq_id = entry
        sequence = self._sequences.get(seq_id)
        # An id may be back under another rank; its old entry is then still a removed one.
        return sequence if sequence is not None and sequence.rank == rank else None
