"""A tokenizer that needs no file: one token per byte, then the special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.errors import InvalidRequestError

BOS = 256
EOS = 257
TURN_START = 258
TURN_END = 259
SPECIAL = {BOS: "<bos>", EOS: "<eos>", TURN_START: "<turn>", TURN_END: "</turn>"}
VOCAB_SIZE = 260


class ByteTokenizer:
    """Satisfies `inference.engine.tokenizer.Tokenizer`. Ids 0 to 255 are bytes of UTF-8."""

    vocab_size = VOCAB_SIZE
    eos_ids = frozenset({EOS, TURN_END})
    special_ids = frozenset(SPECIAL)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = list(text.encode("utf-8", errors="replace"))
        return [BOS, *ids] if add_special_tokens else ids

    def render_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        ids = [BOS]
        for message in messages:
            ids += [TURN_START, *self._body(message), TURN_END]
        return [*ids, TURN_START, *b"assistant\n"]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if skip_special_tokens:
            return bytes(i for i in ids if i < BOS).decode("utf-8", errors="replace")
        raw = b"".join(bytes([i]) if i < BOS else SPECIAL[i].encode() for i in ids)
        return raw.decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)

    def _body(self, message: dict[str, Any]) -> bytes:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise InvalidRequestError("a message needs a role and a text", param="messages")
        return f"{role}\n{content}".encode("utf-8", errors="replace")
