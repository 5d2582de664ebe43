"""Templates and tokenization on a thread of their own, never in the step loop.

It answers tokenizer questions by itself and hands tokenized submissions on to the engine's
thread. It logs no text: neither prompts nor what a tokenizer said about them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from inference.engine.tokenizer import Tokenizer
from inference.errors import EngineError, HaltlineError, InvalidRequestError
from inference.wire import (
    CallFailed,
    ChatPrompt,
    Detokenize,
    Prompt,
    Submit,
    Text,
    TextPrompt,
    Tokenize,
    TokenPrompt,
    Tokens,
)
from inference.worker.commands import Inbox, Submission, Tokenized, TokenizingFailed
from inference.worker.outbox import Delivery
from inference.worker.session import Session

logger = logging.getLogger(__name__)

Question: TypeAlias = Tokenize | Detokenize
Job: TypeAlias = Submission | tuple[Session, Question]


@dataclass(slots=True, kw_only=True)
class Scribe:
    """Prompts to token ids and back. `max_model_len` is told with every answer."""

    tokenizer: Tokenizer
    max_model_len: int

    def prompts(self, submit: Submit) -> tuple[list[list[int]], list[str] | None]:
        """Token ids per prompt; for `echo` their texts too."""
        ids = [self.encode(prompt) for prompt in submit.prompts]
        if not submit.echo:
            return ids, None
        pairs = zip(submit.prompts, ids, strict=True)
        return ids, [self._text(prompt, token_ids) for prompt, token_ids in pairs]

    def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        match prompt:
            case ChatPrompt(messages):
                return self.tokenizer.render_chat(messages)
            case TextPrompt(text):
                return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            case TokenPrompt(token_ids):
                return list(token_ids)

    def answer(self, question: Question) -> Tokens | Text:
        if isinstance(question, Tokenize):
            ids = self.encode(question.prompt, add_special_tokens=question.add_special_tokens)
            return Tokens(call=question.call, token_ids=ids, max_model_len=self.max_model_len)
        return Text(call=question.call, text=self._decode(question.token_ids))

    def _text(self, prompt: Prompt, token_ids: list[int]) -> str:
        return prompt.text if isinstance(prompt, TextPrompt) else self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        size = self.tokenizer.vocab_size
        if not all(0 <= token_id < size for token_id in token_ids):
            raise InvalidRequestError(f"token ids must be from 0 to {size - 1}", param="tokens")
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)


class TokenizerThread:
    """Jobs in order of arrival. `deliver` must not wait."""

    def __init__(
        self, scribe: Scribe, *, inbox: Inbox, deliver: Callable[[list[Delivery]], None]
    ) -> None:
        self._scribe, self._inbox, self._deliver = scribe, inbox, deliver
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tokenizer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """After the jobs that are there."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Submission):
                self._tokenize(job)
            else:
                self._answer(*job)

    def _tokenize(self, submission: Submission) -> None:
        if not submission.is_wanted:
            return
        try:
            ids, texts = self._scribe.prompts(submission.submit)
        except Exception as problem:  # noqa: BLE001 - whatever it is ends this one request
            self._inbox.put(TokenizingFailed(submission, _as_error(problem)))
            return
        self._inbox.put(Tokenized(submission, ids, texts))

    def _answer(self, session: Session, question: Question) -> None:
        try:
            answer: Tokens | Text | CallFailed = self._scribe.answer(question)
        except Exception as problem:  # noqa: BLE001 - as above
            error = _as_error(problem)
            answer = CallFailed(call=question.call, code=error.code, message=error.message)
        self._deliver([(session, answer)])


def _as_error(problem: Exception) -> HaltlineError:
    if isinstance(problem, HaltlineError):
        return problem
    logger.error("the tokenizer failed with a %s", type(problem).__name__)
    return EngineError("the prompt could not be tokenized")
