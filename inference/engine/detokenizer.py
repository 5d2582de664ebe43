"""Token ids to text as they come, and the watch for stop strings. One object per sequence.

Text is let out only when it can no longer change: an unfinished character waits for its other
bytes, and what may be the beginning of a stop string waits until it is one or is not. So all
that was let out, joined, is what decoding all ids at once gives, cut before the stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what an incomplete character decodes to
MAX_UNSPLIT_TOKENS = 16  # beyond this, look for a place to cut a text that never gets clean
MAX_CHARACTER_TOKENS = 4  # UTF-8 has at most four bytes a character


class Detokenizer:
    """`push` ids, take text; `flush` at the end. `stopped_by` says which stop string came."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokens = TokenText(tokenizer)
        self._stops = StopWatch(stop)

    @property
    def stopped_by(self) -> str | None:
        return self._stops.stopped_by

    def push(self, token_ids: Sequence[int], *, may_stop: bool = True) -> str:
        """The text that these tokens make certain. Not `may_stop`: no stop string ends here."""
        return self._stops.push(self._tokens.push(token_ids), may_stop=may_stop)

    def flush(self, *, may_stop: bool = True) -> str:
        """The rest. Nothing is pushed after it."""
        shown = self._stops.push(self._tokens.flush(), may_stop=may_stop)
        return shown + self._stops.flush()


class TokenText:
    """Text of tokens, never splitting a character.

    Decoding is not a function of single tokens: bytes join to characters, and some tokenizers
    drop a space at the start of a text. So the tokens since the last clean place are decoded
    together with those before it that were let out last, which are the context.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []
        self._shown = 0  # characters of the pending tokens' text that are out already

    def push(self, token_ids: Sequence[int]) -> str:
        special = self._tokenizer.special_ids
        visible = [token_id for token_id in token_ids if token_id not in special]
        if not visible:
            return ""
        self._pending += visible
        text = self._new_text(self._pending)
        if not text.endswith(UNFINISHED):
            return self._let_out(len(self._pending), text) if text else ""
        if len(self._pending) > MAX_UNSPLIT_TOKENS:
            return self._cut(text)
        return self._show(text.rstrip(UNFINISHED))

    def flush(self) -> str:
        return self._let_out(len(self._pending), self._new_text(self._pending))

    def _new_text(self, token_ids: list[int]) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + token_ids)[len(before) :]

    def _show(self, text: str) -> str:
        shown = text[self._shown :]
        self._shown += len(shown)
        return shown

    def _let_out(self, count: int, text: str) -> str:
        """Show `text`, which is all of the first `count` pending tokens: they become context."""
        shown = self._show(text)
        self._shown -= len(text)
        self._context, self._pending = self._pending[:count], self._pending[count:]
        return shown

    def _cut(self, whole: str) -> str:
        """Let out the front of what is nothing but broken bytes, so that it cannot grow.

        A place is sound if both sides decode alone to what they decode to together, and no
        unfinished character can reach back over it.
        """
        for count in range(len(self._pending) - MAX_CHARACTER_TOKENS, 0, -1):
            front = self._new_text(self._pending[:count])
            if front and front + self._decode(self._pending[count:]) == whole:
                return self._let_out(count, front)
        return ""

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True) if token_ids else ""


class StopWatch:
    """Holds text back while it may be the beginning of a stop string.

    The stop string that is complete first wins, the longest of those complete together: so the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stops = [text for text in stop if text]
        self._held = ""
        self._searched = 0  # a stop string that ended in so much of the held text is past
        self.stopped_by: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """What of the text so far is safe to show and was not shown yet."""
        if self.stopped_by is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        if may_stop and (found := self._first_stop()) is not None:
            return self._stop_at(*found)
        shown = self._show(len(self._held) - self._doubtful())
        self._searched = len(self._held)
        return shown

    def flush(self) -> str:
        return self._show(len(self._held))

    def _first_stop(self) -> tuple[int, str] | None:
        places = [(self._find(stop), stop) for stop in self._stops]
        found = [(at + len(stop), at, stop) for at, stop in places if at >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _find(self, stop: str) -> int:
        return self._held.find(stop, max(0, self._searched - len(stop) + 1))

    def _stop_at(self, start: int, stop: str) -> str:
        self.stopped_by = stop
        shown = self._show(start)
        self._held = ""
        return shown

    def _doubtful(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _show(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
