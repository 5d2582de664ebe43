"""From a path to what an engine is built of: the model's description, a runner, a tokenizer.

The one entry into the tensor half. Knows no environment: the worker says what it wants.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

import torch

from inference.engine.config import EngineConfig
from inference.engine.hf_tokenizer import load_tokenizer
from inference.engine.models.building import built_model
from inference.engine.models.config import ModelConfig
from inference.engine.models.files import ModelFiles, open_model
from inference.engine.native.checking import native_library
from inference.engine.native.library import Library
from inference.engine.runner import TorchRunner
from inference.engine.tokenizer import Tokenizer

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_KERNELS = ("auto", "torch", "native")


class EngineParts(NamedTuple):
    """What `Engine` takes, and the model's own limits (`model.max_position` among them)."""

    model: ModelConfig
    runner: TorchRunner
    tokenizer: Tokenizer


def load_engine_parts(
    path: Path,
    *,
    config: EngineConfig,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    kernels: str = "auto",
    native_folder: Path | None = None,
) -> EngineParts:
    """Open the model at `path` (folder or GGUF file), load it, take the cache's memory.

    `dtype`: auto, float32, bfloat16 or int8; `device`: auto, cpu, cuda or cuda:N; `threads`:
    torch's own, None for one per core; `kernels`: auto, torch or native, those of C being made at
    the first start and kept in `native_folder` (by default in the user's cache).
    `config.max_model_len` must be within the model's; see `fitted`.
    Raises `ModelError` (a `ValueError`) for a model that cannot be loaded, `ValueError` for a
    choice that this machine does not have.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    place = chosen_device(device)
    weights = chosen_dtype(dtype, place)
    library = chosen_library(kernels, place, native_folder)
    files = open_model(path)
    runner = load_runner(files, config=config, dtype=weights, device=place, library=library)
    return EngineParts(files.config, runner, load_tokenizer(files))


def load_runner(
    files: ModelFiles,
    *,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None = None,
) -> TorchRunner:
    """The weights of an opened model in memory, with a cache of the configured size.

    `dtype` is that of the weights; int8 stands for integers of at most eight bits.
    """
    length = fitted(config, files.config).max_model_len
    model = built_model(files, dtype=dtype, device=device, max_tokens=length, library=library)
    return TorchRunner(model, config)


def chosen_library(kernels: str, device: torch.device, folder: Path | None) -> Library | None:
    """The native kernels where they are wanted and there are any. They are for the CPU."""
    if kernels not in _KERNELS:
        raise ValueError(f"kernels {kernels!r} are not known; use {', '.join(_KERNELS)}")
    if kernels == "torch" or device.type != "cpu":
        return None
    library = native_library(folder)
    if library is None and kernels == "native":
        raise ValueError("native kernels cannot be made on this machine; use auto or torch")
    return library


def fitted(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """The same limits, with no more context than the model was made for."""
    length = min(config.max_model_len, model.max_position)
    return dataclasses.replace(config, max_model_len=length)


def chosen_device(name: str) -> torch.device:
    """The device of that name; auto is the first CUDA device where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not one that torch knows") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"this machine has no device {name!r}")
    return device


def chosen_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of that name; auto is bfloat16 where the device multiplies it, else float32."""
    if name == "auto":
        name = "bfloat16" if _has_bfloat16(device) else "float32"
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())
