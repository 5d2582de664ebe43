"""From a checked body to what is run: one value with the request's words for ledger and engine.

Knows the OpenAI fields and our own; nothing of rows, links or responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gateway.prompts import messages_for_engine, prompt_for_engine
from gateway.response_input import input_messages
from inference.generation import SamplingParams
from inference.wire import ChatPrompt, Prompt, RequestKey, Submit
from ledger.specs import NewRequest

DEFAULT_COMPLETION_TOKENS = 16
# Kept in the record's own columns, not among its parameters.
_ELSEWHERE = frozenset(
    {"model", "prompt", "messages", "stream", "stream_options", "n", "request_id", "metadata"}
    | {"priority", "deadline", "queue_deadline", "input", "instructions"}
)
_SAME_NAME = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One validated call. `fields`: what was given, by its API name, nulls left out."""

    kind: Literal["chat", "completion", "response"]
    fields: dict[str, Any]
    prompts: list[Prompt]
    params: SamplingParams
    client_id: str = ""

    @property
    def model(self) -> str:
        model: str = self.fields["model"]
        return model

    @property
    def n(self) -> int:
        return int(self.fields.get("n", 1))

    @property
    def choice_count(self) -> int:
        return self.n * len(self.prompts)

    @property
    def stream(self) -> bool:
        return bool(self.fields.get("stream"))

    @property
    def background(self) -> bool:
        """Runs without a client that waits."""
        return bool(self.fields.get("background"))

    @property
    def include_usage(self) -> bool:
        return bool((self.fields.get("stream_options") or {}).get("include_usage"))

    @property
    def return_token_ids(self) -> bool:
        return bool(self.fields.get("return_token_ids"))

    @property
    def logprobs(self) -> bool:
        return self.params.logprobs is not None

    @property
    def echo(self) -> bool:
        return bool(self.fields.get("echo"))

    def field_of(self, engines_word: str | None) -> str | None:
        """The API's name of what an engine found wrong. It knows prompts, whatever they came as."""
        if engines_word != "prompt":
            return engines_word
        return {"chat": "messages", "completion": "prompt", "response": "input"}[self.kind]

    def new_request(self) -> NewRequest:
        """For the record."""
        return NewRequest(
            kind=self.kind,
            model=self.model,
            prompt=self._prompts_as_sent(),
            params={k: v for k, v in self.fields.items() if k not in _ELSEWHERE},
            n=self.n,
            choice_count=self.choice_count,
            client_id=self.client_id,
            metadata=self.fields.get("metadata", {}),
            stream=self.stream,
            priority=self.fields.get("priority", 0),
            deadline=self.fields.get("deadline"),
            queue_deadline=self.fields.get("queue_deadline"),
        )

    def _prompts_as_sent(self) -> list[Any]:
        if self.kind == "chat":
            return [self.fields["messages"]]
        if self.kind == "response":
            return [{name: self.fields.get(name) for name in ("input", "instructions")}]
        prompts: list[Any] = self.fields["prompt"]
        return prompts

    def submission(self, key: RequestKey, *, owner: str, priority: int) -> Submit:
        """For the engine. `priority` is the one that the caller may have."""
        return Submit(
            key=key,
            model=self.model,
            prompts=self.prompts,
            params=self.params,
            n=self.n,
            priority=priority,
            echo=self.echo,
            deadline=self.fields.get("deadline"),
            queue_deadline=self.fields.get("queue_deadline"),
            owner=owner,
        )


def chat_order(fields: dict[str, Any], *, client_id: str) -> Order:
    logprobs = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    return Order(
        kind="chat",
        fields=fields,
        prompts=[ChatPrompt(messages_for_engine(fields["messages"]))],
        params=_params(fields, max_tokens=most, logprobs=logprobs, prompt_logprobs=None),
        client_id=client_id,
    )


def completion_order(fields: dict[str, Any], *, client_id: str) -> Order:
    logprobs = fields.get("logprobs")
    return Order(
        kind="completion",
        fields=fields,
        prompts=[prompt_for_engine(prompt) for prompt in fields["prompt"]],
        params=_params(
            fields,
            max_tokens=fields.get("max_tokens", DEFAULT_COMPLETION_TOKENS),
            logprobs=logprobs,
            prompt_logprobs=logprobs if fields.get("echo") else None,
        ),
        client_id=client_id,
    )


def response_order(fields: dict[str, Any], *, client_id: str) -> Order:
    most = fields.get("max_output_tokens")
    return Order(
        kind="response",
        fields=fields,
        prompts=[ChatPrompt(input_messages(fields["input"], fields.get("instructions")))],
        params=_params(fields, max_tokens=most, logprobs=None, prompt_logprobs=None),
        client_id=client_id,
    )


def _params(
    fields: dict[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        top_k=max(0, fields.get("top_k", 0)),
        stop=tuple(fields.get("stop", ())),
        stop_token_ids=tuple(fields.get("stop_token_ids", ())),
        **{name: fields[name] for name in _SAME_NAME if name in fields},
    )
