"""What has arrived for one choice so far. If its engine is lost, this is all there is.

Knows outputs and ends; nothing of who reads them.
"""

from __future__ import annotations

from array import array

from inference.errors import EngineLostError, default_message
from inference.events import ChoiceEnd
from inference.generation import FinishReason
from inference.wire import ChoiceOutput

# Pieces of text that may lie apart before they are joined.
_PIECES = 256


class ChoiceProgress:
    """Tokens and text as they came, eight bytes a token, and how the choice ended.

    Log probabilities are not kept: they are a hundred times as large.
    """

    __slots__ = ("_last", "_pieces", "_token_ids", "characters", "has_begun")

    def __init__(self) -> None:
        self.characters = 0
        self.has_begun = False
        self._token_ids = array("q")
        self._pieces: list[str] = []
        self._last: ChoiceOutput | None = None

    @property
    def tokens(self) -> int:
        return len(self._token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._last.finish_reason if self._last is not None else None

    def take(self, output: ChoiceOutput) -> None:
        self.has_begun = True
        self._token_ids.extend(output.token_ids)
        if output.text:
            self.characters += len(output.text)
            self._pieces.append(output.text)
        if len(self._pieces) > _PIECES:
            self._pieces = ["".join(self._pieces)]
        if output.finish_reason is not None:
            self._last = output

    def end(self, index: int) -> ChoiceEnd:
        """For the record: how it ended; if it has not, that its engine was lost."""
        ids, text, last = self._token_ids.tolist(), "".join(self._pieces), self._last
        if last is None or last.finish_reason is None:
            return ChoiceEnd(
                index=index,
                finish_reason=FinishReason.ERROR,
                token_ids=ids,
                text=text,
                error_code=EngineLostError.code,
                error_message=default_message(EngineLostError),
            )
        return ChoiceEnd(
            index=index,
            finish_reason=last.finish_reason,
            token_ids=ids,
            text=text,
            stop_reason=last.stop_reason,
            abort=last.abort,
            error_code=last.error_code,
            error_message=last.error_message,
        )
