"""Log probabilities of tokens under the model's own distribution.

Taken from the logits as the model gave them, before temperature, penalties, biases and filters:
they say what the model thinks, whatever the request made of it.
"""

from __future__ import annotations

import torch

from inference.engine.batch import RawLogprobs


def raw_logprobs(
    logits: torch.Tensor, token_ids: list[int], counts: list[int]
) -> list[RawLogprobs]:
    """For each row of `logits` [R, V]: that of its token, and of its `counts[i]` likeliest."""
    normaliser = logits.logsumexp(-1, keepdim=True)
    tokens = torch.tensor(token_ids, device=logits.device)[:, None]
    own = (logits.gather(-1, tokens) - normaliser)[:, 0].tolist()
    best = logits.topk(min(max(counts, default=0), logits.shape[1]))
    values, ids = (best.values - normaliser).tolist(), best.indices.tolist()
    return [
        RawLogprobs(token, logprob, tuple(ids[row][:count]), tuple(values[row][:count]))
        for row, (token, logprob, count) in enumerate(zip(token_ids, own, counts, strict=True))
    ]
