"""What the engine asks of a tokenizer. Implementations live elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to call from several threads."""

    @property
    def vocab_size(self) -> int:
        """Ids below this have a meaning; the model's own table may be longer."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: what `decode` leaves out with `skip_special_tokens`."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """`add_special_tokens`: with the model's own marks around a text (such as BOS)."""

    def render_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """The model's chat template over `messages`, up to where the answer begins.

        Raises `InvalidRequestError` for messages that the template cannot take.
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes that are no valid UTF-8 become U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """One token as a reader sees it in logprobs; special tokens by their name."""
