"""The OpenAI API's words: outputs of the engine as objects and chunks of both routes.

Ours are three additions: `abort` on a choice that was stopped, `stop_reason`, and token ids where
they are asked for. Knows nothing of transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gateway.mailbox import Mailbox
from gateway.orders import Order
from inference.generation import FinishReason, TokenLogprob, TokenLogprobs
from inference.wire import ChoiceOutput


@dataclass(slots=True, kw_only=True)
class Rendering:
    """How one request's outputs read. `created`: seconds since the epoch."""

    chunk_object: ClassVar[str]
    whole_object: ClassVar[str]

    response_id: str
    created: int
    order: Order

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that come before any token."""
        return []

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self.order.include_usage else {}
        return {**self._frame(self.chunk_object), "choices": choices, **usage}

    def usage_chunk(self, mailbox: Mailbox) -> dict[str, Any]:
        return {**self.chunk([]), "usage": usage_json(mailbox)}

    def whole(self, outputs: Iterable[ChoiceOutput], mailbox: Mailbox) -> dict[str, Any]:
        choices = [self.whole_choice(output) for output in sorted(outputs, key=_index)]
        return {
            **self._frame(self.whole_object),
            "choices": choices,
            "usage": usage_json(mailbox),
        }

    def says_something(self, output: ChoiceOutput) -> bool:
        """Text may lag behind the tokens: a chunk without any is worth nothing to most clients."""
        return bool(
            output.text
            or output.prompt_text
            or output.finish_reason
            or (output.token_ids and (self.order.logprobs or self.order.return_token_ids))
        )

    def chunk_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        raise NotImplementedError

    def whole_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        raise NotImplementedError

    def _frame(self, name: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": name,
            "created": self.created,
            "model": self.order.model,
        }

    def _rest(self, output: ChoiceOutput) -> dict[str, Any]:
        """What choices of both routes have in common: their end, and token ids if asked for."""
        rest: dict[str, Any] = {"finish_reason": output.finish_reason}
        if output.finish_reason is not None:
            rest["stop_reason"] = output.stop_reason
        if output.finish_reason is FinishReason.ABORT:
            rest["abort"] = abort_json(output)
        if self.order.return_token_ids:
            rest["token_ids"] = output.token_ids
            if output.prompt_token_ids is not None:
                rest["prompt_token_ids"] = output.prompt_token_ids
        return rest


@dataclass(slots=True, kw_only=True)
class ChatRendering(Rendering):
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self) -> list[dict[str, Any]]:
        start = {"role": "assistant", "content": ""}
        return [
            self.chunk([{"index": index, "delta": start, "logprobs": None, "finish_reason": None}])
            for index in range(self.order.choice_count)
        ]

    def chunk_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        delta = {"content": output.text} if output.text else {}
        logprobs = self._logprobs(output) if output.token_ids else None
        return {
            "index": output.index,
            "delta": delta,
            "logprobs": logprobs,
            **self._rest(output),
        }

    def whole_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return {
            "index": output.index,
            "message": message,
            "logprobs": self._logprobs(output),
            **self._rest(output),
        }

    def _logprobs(self, output: ChoiceOutput) -> dict[str, Any] | None:
        if not self.order.logprobs:
            return None
        return {"content": [_chat_entry(entry) for entry in output.logprobs or []], "refusal": None}


@dataclass(slots=True, kw_only=True)
class CompletionRendering(Rendering):
    chunk_object = "text_completion"
    whole_object = "text_completion"

    _offsets: dict[int, int] = field(default_factory=dict)

    def chunk_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        return {
            "index": output.index,
            "text": (output.prompt_text or "") + output.text,
            "logprobs": self._logprobs(output),
            **self._rest(output),
        }

    def whole_choice(self, output: ChoiceOutput) -> dict[str, Any]:
        return self.chunk_choice(output)

    def _logprobs(self, output: ChoiceOutput) -> dict[str, Any] | None:
        if not self.order.logprobs:
            return None
        entries = [*_prompt_entries(output), *map(_text_entry, output.logprobs or [])]
        offset = self._offsets.get(output.index, 0)
        offsets = []
        for entry in entries:
            offsets.append(offset)
            offset += len(entry.token)
        self._offsets[output.index] = offset
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [entry.top for entry in entries],
            "text_offset": offsets,
        }


def rendering_of(order: Order, *, response_id: str, created: int) -> Rendering:
    kind = ChatRendering if order.kind == "chat" else CompletionRendering
    return kind(response_id=response_id, created=created, order=order)


def usage_json(mailbox: Mailbox) -> dict[str, Any]:
    """Counts of what has arrived here: exactly the tokens that the client got."""
    prompt_tokens = sum(mailbox.accepted.result().prompt_tokens)
    cached = mailbox.usage.cached_prompt_tokens if mailbox.usage else 0
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": mailbox.tokens,
        "total_tokens": prompt_tokens + mailbox.tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def abort_json(output: ChoiceOutput) -> dict[str, Any] | None:
    if output.abort is None:
        return None
    return {"id": output.abort.id, "cause": output.abort.cause, "reason": output.abort.reason}


@dataclass(frozen=True, slots=True)
class _TextEntry:
    """One place in a completion's logprobs. Nothing is known about a prompt's first token."""

    token: str
    logprob: float | None
    top: dict[str, float] | None


def _text_entry(entry: TokenLogprobs) -> _TextEntry:
    """The token itself is among the likeliest, or comes after them: at most one more than asked."""
    top = {one.token: one.logprob for one in entry.top}
    top[entry.sampled.token] = entry.sampled.logprob
    return _TextEntry(entry.sampled.token, entry.sampled.logprob, top)


def _prompt_entries(output: ChoiceOutput) -> list[_TextEntry]:
    known = [_text_entry(entry) for entry in output.prompt_logprobs or [] if entry is not None]
    missing = len(output.prompt_logprobs or []) - len(known)
    if not missing:
        return known
    text = output.prompt_text or ""
    rest = sum(len(entry.token) for entry in known)
    return [_TextEntry(text[: max(0, len(text) - rest)], None, None), *known]


def _chat_entry(entry: TokenLogprobs) -> dict[str, Any]:
    return {**_chat_token(entry.sampled), "top_logprobs": [_chat_token(one) for one in entry.top]}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": list(token.token.encode("utf-8", "replace")),
    }


def _index(output: ChoiceOutput) -> int:
    return output.index
