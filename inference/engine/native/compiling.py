"""Makes the library of C kernels with the system's compiler, once for each kind of machine.

What was made is kept in a private folder, under a name that says what it was made from and what
its bytes are: a file that is someone else's, was cut short or tampered with is never loaded, but
made again. Without a compiler there is no library, and the log says so. Knows nothing of what the
kernels do.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)
_SOURCES = Path(__file__).parent
_NAMES = ("linear.c", "decode.c", "prefill.c", "forward.c")
_HEADERS = ("vectors.h", "kernels.h")
_FLAGS = (
    "-O2",
    "-march=native",
    "-std=gnu11",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-Wno-psabi",
)
_LINKING = ("-shared", "-fopenmp", "-lm")
_COMPILERS = ("cc", "gcc", "clang")
_LONGEST = 60.0  # seconds that a compiler may take


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a library is made with. Two equal recipes on one machine make equal libraries."""

    compiler: str
    version: str
    flags: tuple[str, ...] = _FLAGS

    @property
    def key(self) -> str:
        """Changes with the sources, the compiler, its flags, and the machine's abilities."""
        digest = hashlib.sha256()
        for name in _NAMES + _HEADERS:
            digest.update((_SOURCES / name).read_bytes())
        parts = (self.compiler, self.version, *self.flags, sys.platform, _processor())
        digest.update("\0".join(parts).encode())
        return digest.hexdigest()[:24]


def default_folder() -> Path:
    """Where libraries are kept if nobody says where."""
    try:
        return Path.home() / ".cache" / "haltline" / "native"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"haltline-native-{os.getuid()}"


def library_file(folder: Path, recipe: Recipe | None) -> Path | None:
    """A library that can be trusted, made if need be; None where none can be made.

    Raises nothing: a machine without native kernels still works.
    """
    if recipe is None:
        _LOG.info("no C compiler is installed: native kernels are off")
        return None
    try:
        return _kept(folder, recipe) or _made(folder, recipe)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("native kernels are off: they could not be made: %s", _reason(error))
        return None


def found_recipe() -> Recipe | None:
    """With the first compiler that there is and that answers; None without one."""
    for name in _COMPILERS:
        path = shutil.which(name)
        version = _version(path) if path else None
        if path and version:
            return Recipe(path, version)
    return None


def _version(compiler: str) -> str | None:
    try:
        command = [compiler, "--version"]
        done = subprocess.run(  # noqa: S603 - a compiler from the search path
            command, capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None  # a name without a working compiler behind it: the next one is tried
    return done.stdout


def _processor() -> str:
    """Model and abilities of this machine's processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    wanted = ("model name", "flags", "Features", "CPU part")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    first = info.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    lines = [line for line in first.splitlines() if line.startswith(wanted)]
    return "\n".join([platform.machine(), *lines])


def _kept(folder: Path, recipe: Recipe) -> Path | None:
    """A library that was made before, if the folder and the file are what we left."""
    if not _is_private(folder, stat.S_ISDIR):
        return None
    for path in sorted(folder.glob(f"{recipe.key}-*.so")):
        if _is_private(path, stat.S_ISREG) and path.name == _name(recipe, path.read_bytes()):
            return path
        _LOG.warning("%s is not what was made here: it is not used", path)
    return None


def _is_private(path: Path, is_kind: object) -> bool:
    """Whether it is of that kind, no link, ours, and nobody else may write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    kind = callable(is_kind) and bool(is_kind(found.st_mode))
    return kind and found.st_uid == os.getuid() and not found.st_mode & others


def _name(recipe: Recipe, content: bytes) -> str:
    return f"{recipe.key}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _made(folder: Path, recipe: Recipe) -> Path:
    """Compile, then put the library in its place in one move: another process may do the same."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder, stat.S_ISDIR):
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as scratch:
        library = _compiled(Path(scratch), recipe)
        library.chmod(0o500)
        place = folder / _name(recipe, library.read_bytes())
        library.replace(place)
    return place


def _compiled(scratch: Path, recipe: Recipe) -> Path:
    """The sources side by side to objects, the objects to a library."""
    objects = [str(scratch / f"{name}.o") for name in _NAMES]
    commands = [
        [recipe.compiler, *recipe.flags, "-c", str(_SOURCES / name), "-o", target]
        for name, target in zip(_NAMES, objects, strict=True)
    ]
    running = [_started(command) for command in commands]
    try:
        for process in running:
            _finish(process)
    finally:
        for process in running:
            process.kill()
            process.wait()
    library = scratch / "kernels.so"
    _finish(_started([recipe.compiler, *objects, *_LINKING, "-o", str(library)]))
    return library


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - that compiler, on our own sources
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=_LONGEST)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, output)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.output).splitlines() if "error" in line]
        return lines[0] if lines else f"the compiler ended with {error.returncode}"
    return str(error)
