"""How the native library comes to be: made once, kept safely, done without where it cannot be."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from inference.engine.layers.native_linear import NativeLinear
from inference.engine.native import compiling
from inference.engine.native.checking import problem_of
from inference.engine.native.compiling import Recipe, found_recipe, library_file
from inference.engine.native.library import Library

_SOURCE = "int haltline_answer(void) { return %d; }\n"


@pytest.fixture
def recipe() -> Recipe:
    found = found_recipe()
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a library's worth of C that compiles in no time."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.c").write_text(_SOURCE % 42)
    monkeypatch.setattr(compiling, "_SOURCES", folder)
    monkeypatch.setattr(compiling, "_NAMES", ("answer.c",))
    monkeypatch.setattr(compiling, "_HEADERS", ())
    monkeypatch.setattr(compiling, "_FLAGS", ("-O0", "-fPIC"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "native"


@pytest.fixture
def plain(recipe: Recipe, sources: Path) -> Recipe:
    return Recipe(recipe.compiler, recipe.version, ("-O0", "-fPIC"))


def identity(path: Path | None) -> tuple[int, int]:
    assert path is not None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def test_it_makes_a_library_once_and_finds_it_again(folder: Path, plain: Recipe) -> None:
    first = library_file(folder, plain)
    made = identity(first)
    assert library_file(folder, plain) == first
    assert identity(first) == made
    assert first is not None
    assert list(folder.iterdir()) == [first], "nothing else is left behind"
    assert stat.S_IMODE(first.stat().st_mode) == 0o500
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_it_makes_another_for_other_sources_compilers_or_flags(
    folder: Path, plain: Recipe, sources: Path
) -> None:
    first = library_file(folder, plain)
    others = [Recipe(plain.compiler, "newer", plain.flags), Recipe(plain.compiler, "", ("-fPIC",))]
    found = [library_file(folder, other) for other in others]
    (sources / "answer.c").write_text(_SOURCE % 43)
    assert len({first, *found, library_file(folder, plain)}) == 4


@pytest.mark.parametrize("damage", ["cut short", "changed", "empty"])
def test_it_never_uses_a_file_that_is_not_what_was_made(
    folder: Path, plain: Recipe, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = library_file(folder, plain)
    assert first is not None
    content = first.read_bytes()
    damaged = {"cut short": content[:2000], "changed": content[:-1] + b"!", "empty": b""}[damage]
    first.chmod(0o700)
    first.write_bytes(damaged)
    again = library_file(folder, plain)
    assert again is not None
    assert again.read_bytes() == content or again != first
    assert again.read_bytes() != damaged
    assert "not what was made here" in caplog.text


def test_it_follows_no_link_and_takes_no_file_that_others_can_write(
    folder: Path, plain: Recipe, tmp_path: Path
) -> None:
    first = library_file(folder, plain)
    assert first is not None
    elsewhere = tmp_path / "elsewhere.so"
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    again = library_file(folder, plain)
    assert again is not None
    assert not again.is_symlink()
    again.chmod(0o722)
    assert stat.S_IMODE(library_file(folder, plain).stat().st_mode) == 0o500  # type: ignore[union-attr]


def test_it_uses_no_folder_that_others_can_write(
    folder: Path, plain: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert library_file(folder, plain) is None
    assert "only this user can write" in caplog.text


def test_it_says_in_one_line_that_there_is_no_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found_recipe() is None
    assert library_file(folder, found_recipe()) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no C compiler is installed: native kernels are off"
    ]
    assert not folder.exists()


def test_it_passes_over_a_compiler_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, code in (("cc", 1), ("gcc", 0)):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\necho version of {name}\nexit {code}\n")
        script.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found_recipe() == Recipe(str(tmp_path / "gcc"), "version of gcc\n")


def test_it_does_without_where_the_sources_do_not_compile(
    folder: Path, plain: Recipe, sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (sources / "answer.c").write_text("this is no C\n")
    assert library_file(folder, plain) is None
    assert "native kernels are off: they could not be made" in caplog.text
    assert "error" in caplog.text
    assert list(folder.iterdir()) == []


def test_it_does_without_where_nothing_can_be_written(plain: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert library_file(tmp_path / "file" / "below", plain) is None


def test_it_can_be_made_by_several_at_once(folder: Path, plain: Recipe) -> None:
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: library_file(folder, plain), range(3)))
    assert all(path is not None and path.is_file() for path in paths)
    assert not list(folder.glob(".making-*"))


def test_it_refuses_a_library_that_is_not_ours(folder: Path, plain: Recipe, tmp_path: Path) -> None:
    foreign = library_file(folder, plain)
    assert foreign is not None
    with pytest.raises(ValueError, match="lacks the function"):
        Library(foreign)
    (tmp_path / "garbage.so").write_bytes(os.urandom(4096))
    with pytest.raises(OSError, match=r"garbage\.so"):
        Library(tmp_path / "garbage.so")


def test_it_notices_results_that_are_not_torch_s(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem_of(library) is None
    monkeypatch.setattr(NativeLinear, "__call__", lambda self, x: torch.full((9, 40), torch.nan))
    assert problem_of(library) == "their products of FLOAT32 are wrong"


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["-march=x86-64", "-mavx2 -mfma -mf16c"])
def test_it_compiles_for_plain_machines_without_a_warning(machine: str, recipe: Recipe) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("those flags are for x86-64")
    for name in compiling._NAMES:
        flags = [
            "-O1",
            "-S",
            "-o",
            os.devnull,
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Wno-psabi",
            "-Werror",
        ]
        source = str(Path(compiling.__file__).parent / name)
        command = [recipe.compiler, *flags, "-fopenmp", *machine.split(), source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["-march=x86-64", "-march=x86-64-v3", "-mno-avx512vnni"])
def test_it_computes_the_same_on_plainer_machines(
    machine: str, recipe: Recipe, folder: Path
) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("those flags are for x86-64")
    plainer = Recipe(recipe.compiler, recipe.version, (*recipe.flags, machine))
    path = library_file(folder, plainer)
    assert path is not None
    assert problem_of(Library(path)) is None
