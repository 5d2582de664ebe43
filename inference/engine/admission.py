"""May this sequence come in? Checks what is asked against the model, the context and the cache.

One bad sequence must not spoil a batch with others in it, so whatever the tensors could trip
over is refused here, before anything is queued.
"""

from __future__ import annotations

from inference.engine.config import EngineConfig
from inference.engine.outputs import NewSequence
from inference.errors import ContextLengthExceededError, InvalidRequestError


def check_tokens(new: NewSequence, vocab_size: int) -> None:
    """Raises `InvalidRequestError` for ids outside of the model's table, and for no ids."""
    if not new.prompt_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if min(new.prompt_ids) < 0 or max(new.prompt_ids) >= vocab_size:
        raise InvalidRequestError(
            f"the prompt has token ids outside of 0 to {vocab_size - 1}", param="prompt"
        )
    if any(not 0 <= token_id < vocab_size for token_id in new.params.logit_bias):
        raise InvalidRequestError(
            f"logit_bias has token ids outside of 0 to {vocab_size - 1}", param="logit_bias"
        )


def max_new_tokens(new: NewSequence, config: EngineConfig) -> int:
    """How many tokens it may sample: what it asks for, or else as many as fit.

    Raises `ContextLengthExceededError` if it does not fit, however long it waits.
    """
    prompt, limit = len(new.prompt_ids), config.max_sequence_tokens
    asked = new.params.max_tokens
    if asked is not None and asked < 0:
        raise InvalidRequestError("max_tokens must not be negative", param="max_tokens")
    if prompt + (1 if asked is None else asked) <= limit and _is_cacheable(prompt, config):
        return limit - prompt if asked is None else asked
    wanted = "" if asked is None else f" and {asked} more are asked for"
    raise ContextLengthExceededError(
        f"at most {limit} tokens fit; the prompt has {prompt}{wanted}", param="prompt"
    )


def _is_cacheable(prompt: int, config: EngineConfig) -> bool:
    return prompt <= config.num_blocks * config.block_size
