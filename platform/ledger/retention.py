"""Whether what people wrote and models answered is kept: prompts, texts, tokens, logprobs.

With `HALTLINE_RETENTION=0` it is not. A prompt whose request still has to be submitted by somebody
else stays until that request has ended.
"""

from __future__ import annotations

from django.conf import settings


def content_is_kept() -> bool:
    days: int = settings.HALTLINE_RETENTION_DAYS
    return days > 0
