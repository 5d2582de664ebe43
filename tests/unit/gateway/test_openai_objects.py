"""What outputs read like in the OpenAI API's words."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.openai import rendering_of
from gateway.orders import completion_order
from inference.generation import FinishReason, TokenLogprob, TokenLogprobs
from inference.wire import ChoiceOutput, RequestKey

LIKELY = TokenLogprob(1, "a", -0.1)
UNLIKELY = TokenLogprob(2, "z", -9.0)


def logprobs_of(output: ChoiceOutput) -> dict[str, Any]:
    fields = {"model": "tiny", "prompt": ["xz"], "logprobs": 1, "echo": True}
    order = completion_order(fields, client_id="")
    rendering = rendering_of(order, response_id="cmpl-1", created=0)
    found: dict[str, Any] = rendering.chunk_choice(output)["logprobs"]
    return found


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (TokenLogprobs(UNLIKELY, (LIKELY,)), {"a": -0.1, "z": -9.0}),
        (TokenLogprobs(LIKELY, (LIKELY,)), {"a": -0.1}),
        (TokenLogprobs(UNLIKELY), {"z": -9.0}),
    ],
)
def test_it_tells_of_the_token_itself_among_the_likeliest(
    entry: TokenLogprobs, told: dict[str, float]
) -> None:
    """One more than asked at most: of the prompt's tokens as of those that follow."""
    output = ChoiceOutput(
        key=RequestKey("req_1", 1),
        index=0,
        text=entry.sampled.token,
        token_ids=[entry.sampled.token_id],
        logprobs=[entry],
        prompt_text=f"x{entry.sampled.token}",
        prompt_logprobs=[None, entry],
        finish_reason=FinishReason.LENGTH,
    )
    assert logprobs_of(output)["top_logprobs"] == [None, told, told]
