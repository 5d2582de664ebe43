"""What can be wrong with a model's files, as errors that say which file and what.

All are `ValueError`: a caller that loads a model catches one thing. Knows no file format.
"""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be loaded."""


class UnsupportedModelError(ModelError):
    """The model is sound, but of a kind that this engine does not run."""


class CorruptModelError(ModelError):
    """The model's files are damaged, incomplete, or not what they say they are."""
