"""Is a Submit sane? What the web process should have refused is refused here once more.

The engine checks what depends on the model and the cache; this is about the shape of the request
and the ranges that sampling can bear.
"""

from __future__ import annotations

import math

from inference.errors import InvalidRequestError
from inference.generation import SamplingParams
from inference.wire import Submit

MAX_CHOICES = 4_096
MAX_LOGPROBS = 100
MAX_STOPS = 64
MAX_STOP_LENGTH = 1_024

# name, least, most
RANGES: list[tuple[str, float, float]] = [
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("top_k", -1, 2**31 - 1),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("min_tokens", 0, 2**31 - 1),
    ("max_tokens", 0, 2**31 - 1),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("seed", -(2**63), 2**64 - 1),
]


def num_choices(submit: Submit) -> int:
    """How many choices it asks for. Raises `InvalidRequestError` for none and for too many."""
    if submit.n < 1 or not submit.prompts:
        raise InvalidRequestError("at least one prompt and one choice are needed", param="n")
    if submit.n * len(submit.prompts) > MAX_CHOICES:
        raise InvalidRequestError(f"a request has at most {MAX_CHOICES} choices", param="n")
    return submit.n * len(submit.prompts)


def check_submit(submit: Submit) -> None:
    """Raises `InvalidRequestError` that names the field."""
    for name in ("deadline", "queue_deadline"):
        seconds = getattr(submit, name)
        if seconds is not None and not 0 <= seconds < math.inf:
            raise InvalidRequestError(f"{name} must be seconds from now", param=name)
    check_params(submit.params)


def check_params(params: SamplingParams) -> None:
    for name, least, most in RANGES:
        value = getattr(params, name)
        if value is not None and not least <= value <= most:  # false for NaN
            raise InvalidRequestError(f"{name} must be from {least:g} to {most:g}", param=name)
    if not all(-1e4 <= bias <= 1e4 for bias in params.logit_bias.values()):
        raise InvalidRequestError("logit_bias has a value out of range", param="logit_bias")
    _check_stops(params)


def _check_stops(params: SamplingParams) -> None:
    if len(params.stop) > MAX_STOPS or len(params.stop_token_ids) > MAX_STOPS:
        raise InvalidRequestError(f"at most {MAX_STOPS} stops are possible", param="stop")
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in params.stop):
        raise InvalidRequestError(
            f"a stop string has 1 to {MAX_STOP_LENGTH} characters", param="stop"
        )
