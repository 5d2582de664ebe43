"""Opens a model on disk, whatever its format: what it is, and its weights.

A path is a folder in transformers' layout with safetensors, a GGUF file, or a folder that holds
exactly one GGUF file. Knows no device and no tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.engine.models.config import ModelConfig
from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.gguf_file import GgufFile
from inference.engine.models.gguf_model import GgufWeights, read_gguf_config
from inference.engine.models.hf_config import read_hf_config
from inference.engine.models.safetensors_weights import SafetensorsWeights
from inference.engine.models.weights import WeightSource


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An opened model. `gguf` is the file where the model is one."""

    path: Path
    config: ModelConfig
    weights: WeightSource
    gguf: GgufFile | None = None


def open_model(path: Path) -> ModelFiles:
    """Open the model at that path. Raises `ModelError`, never reads the weights yet."""
    if path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        msg = f"there is no model at {path}"
        raise CorruptModelError(msg)
    if (path / "config.json").is_file():
        return _open_folder(path)
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        msg = f"{path} holds no config.json and {len(found)} GGUF files; one model is needed"
        raise CorruptModelError(msg)
    return _open_gguf(found[0])


def _open_folder(path: Path) -> ModelFiles:
    config = read_hf_config(path)
    if not list(path.glob("*.safetensors")) and list(path.glob("*.bin")):
        msg = f"{path} holds pickled weights, which can carry code; convert them to safetensors"
        raise UnsupportedModelError(msg)
    return ModelFiles(path, config, SafetensorsWeights(path))


def _open_gguf(path: Path) -> ModelFiles:
    file = GgufFile(path)
    config = read_gguf_config(file)
    return ModelFiles(path, config, GgufWeights(file, config), file)
