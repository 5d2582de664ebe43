"""A tokenizer and chat template over `transformers`, from a model folder or a GGUF file.

Texts go straight to the compiled tokenizer underneath, which is safe in several threads; only the
chat template is rendered by transformers. Knows no engine and no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer

from inference.engine.gguf_tokenizer import gguf_tokenizer
from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.files import ModelFiles
from inference.errors import InvalidRequestError


class HfTokenizer:
    """Satisfies `inference.engine.tokenizer.Tokenizer`."""

    def __init__(self, tokenizer: Any, *, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._size = len(tokenizer)
        own = {tokenizer.eos_token_id} - {None}
        self._eos_ids = eos_ids or frozenset(own)
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(number for number, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        sound = text.encode(errors="replace").decode()  # lone surrogates have no bytes
        ids: list[int] = self._backend.encode(sound, add_special_tokens=add_special_tokens).ids
        return ids

    def render_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """The template over `messages`, then the start of an answer.

        The template writes the model's own marks, so none are added. Raises
        `InvalidRequestError` for messages that the template refuses, or where there is none.
        """
        return self.encode(self._rendered(messages), add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        if not self._tokenizer.chat_template:
            raise InvalidRequestError("this model has no chat template; use /v1/completions")
        if not messages:
            raise InvalidRequestError("messages must not be empty", param="messages")
        plain = [_with_plain_content(message) for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is the model's own code and may raise anything
            msg = f"the model's chat template cannot take these messages: {error}"
            raise InvalidRequestError(msg, param="messages") from error
        return text


def load_tokenizer(files: ModelFiles) -> HfTokenizer:
    """The tokenizer of an opened model. Nothing is fetched and no code from the folder runs.

    Raises `ModelError` where there is none or it does not work.
    """
    if files.gguf is not None:
        return HfTokenizer(gguf_tokenizer(files.gguf), eos_ids=files.config.eos_ids)
    try:
        found = AutoTokenizer.from_pretrained(
            str(files.path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged tokenizer file may raise anything at all
        msg = f"the tokenizer in {files.path} cannot be loaded: {error}"
        raise CorruptModelError(msg) from error
    if not getattr(found, "is_fast", False):
        msg = f"the tokenizer in {files.path} has no compiled form (tokenizer.json)"
        raise UnsupportedModelError(msg)
    return HfTokenizer(found, eos_ids=files.config.eos_ids)


def _with_plain_content(message: Any) -> dict[str, Any]:
    """Content given as a list of text parts, as the OpenAI API allows, becomes one text."""
    if not isinstance(message, dict):
        raise InvalidRequestError("each message must be an object", param="messages")
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "".join(map(_text_of_part, content))}


def _text_of_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise InvalidRequestError("only text content is supported", param="messages")
    return text
