"""The one error of this package: its text is for the operator who named a model."""

from __future__ import annotations

from inference.errors import HaltlineError


class WeightsError(HaltlineError):
    """The model's weights are not to be had."""

    code = "weights_unavailable"
