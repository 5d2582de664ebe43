"""How a choice's state becomes an output on the wire."""

from __future__ import annotations

from inference.generation import FinishReason
from inference.wire import ChoiceOutput
from inference.worker.request import Choice, Request


def tell(request: Request, choice: Choice, *, from_token: int, text: str) -> ChoiceOutput:
    """What is new: the tokens from `from_token` on, and `text`; the prompt too, the first time."""
    with_prompt = request.submit.echo and not choice.told_prompt
    choice.told_prompt = True
    return _output(request, choice, from_token, text, with_prompt=with_prompt)


def replay(request: Request, choice: Choice, *, from_token: int) -> ChoiceOutput | None:
    """All from `from_token` on, for a follower; None if there is nothing yet."""
    with_prompt = request.submit.echo and from_token == 0 and choice.told_prompt
    text = choice.text_after(from_token)
    if len(choice.token_ids) <= from_token and not text and choice.finish is None:
        return None
    return _output(request, choice, from_token, text, with_prompt=with_prompt)


def _output(
    request: Request, choice: Choice, from_token: int, text: str, *, with_prompt: bool
) -> ChoiceOutput:
    has_ended = choice.finish is not None
    wants_logprobs = request.submit.params.logprobs is not None
    prompt = request.prompt_of(choice)
    texts = request.prompt_texts if with_prompt else None
    return ChoiceOutput(
        key=request.key,
        index=choice.index,
        text=text,
        token_ids=choice.token_ids[from_token:],
        logprobs=choice.logprobs[from_token:] if wants_logprobs else None,
        prompt_text=texts[prompt] if texts else None,
        prompt_token_ids=request.prompt_ids[prompt] if texts else None,
        prompt_logprobs=choice.prompt_logprobs if with_prompt else None,
        finish_reason=choice.finish,
        stop_reason=choice.stop_reason,
        usage=request.usage if has_ended else None,
        abort=request.abort if choice.finish is FinishReason.ABORT else None,
        error_code=choice.error_code,
        error_message=choice.error_message,
    )
