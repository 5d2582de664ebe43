"""Weights from a folder of safetensors files, one or sharded. Knows no model and no config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.hf_config import read_json

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """A `WeightSource`. Files are opened here and their tensors read when asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = [_opened(path) for path in _shards(folder)]
        self._by_name = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def has(self, name: str) -> bool:
        return name in self._by_name

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._by_name:
            msg = f"tensor {name!r} is missing"
            raise CorruptModelError(msg)
        try:
            found: torch.Tensor = self._by_name[name].get_tensor(name)
        except (SafetensorError, RuntimeError, ValueError) as error:
            msg = f"tensor {name!r} cannot be read: {error}"
            raise CorruptModelError(msg) from error
        if found.dtype not in _DTYPES:
            msg = f"tensor {name!r} is of type {found.dtype}, which is not supported"
            raise UnsupportedModelError(msg)
        return found


def _shards(folder: Path) -> list[Path]:
    """The one file, or those that the index names: plain names inside the folder only."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        msg = f"{folder} holds neither {_SINGLE} nor {_INDEX}"
        raise CorruptModelError(msg)
    shards = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        msg = f"{_INDEX} has no weight map"
        raise CorruptModelError(msg)
    return [folder / _plain(name) for name in sorted({*map(str, shards.values())})]


def _plain(name: str) -> str:
    if Path(name).name != name or not name.endswith(".safetensors"):
        msg = f"{_INDEX} names {name!r}, which is no file of this folder"
        raise CorruptModelError(msg)
    return name


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        msg = f"{path.name} is cut short or damaged: {error}"
        raise CorruptModelError(msg) from error
