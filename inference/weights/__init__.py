"""Model weights by name: where they come from, and where they lie once they are here.

A name is a path of a folder or GGUF file, a model of the catalog (the default one among them),
or a Hugging Face id. `resolve` looks, `pull` fetches. It imports neither torch nor Django, and
does not read what is inside the weights.
"""

from __future__ import annotations

from inference.weights.catalog import DEFAULT_MODEL
from inference.weights.errors import WeightsError
from inference.weights.store import pull, resolve

__all__ = ["DEFAULT_MODEL", "WeightsError", "pull", "resolve"]
