"""Where the state of one installation lives: paths below HALTLINE_HOME, and its secrets.

Secrets are made on first use and kept in files that only the user can read.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

# sockaddr_un holds 108 bytes on Linux and 104 on macOS, a closing zero included.
_LONGEST_SOCKET_PATH = 100
_LONGEST_SOCKET_NAME = len("/engine-999.sock")


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def database(self) -> Path:
        return self.root / "haltline.sqlite3"

    @property
    def broker_data(self) -> Path:
        return self.root / "broker"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def static(self) -> Path:
        return self.root / "static"

    @property
    def run(self) -> Path:
        """The folder of the unix sockets: below the root, or a short one where that is too long."""
        inside = self.root / "run"
        if len(os.fsencode(inside)) + _LONGEST_SOCKET_NAME <= _LONGEST_SOCKET_PATH:
            return inside
        mark = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"haltline-{os.getuid()}-{mark}"

    @property
    def broker_socket(self) -> Path:
        return self.run / "broker.sock"

    def engine_socket(self, number: int) -> Path:
        return self.run / f"engine-{number}.sock"

    def key_file(self, name: str) -> Path:
        return self.root / f"{name}.key"

    def prepare(self) -> None:
        """Make the folders, readable by this user alone. Raises `OSError` where that fails."""
        for folder in (self.root, self.broker_data, self.models, self.static, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.run.stat().st_uid
        if owner != os.getuid():
            raise PermissionError(f"{self.run} belongs to another user (uid {owner})")

    def secret(self, name: str) -> str:
        """The secret kept under `name`, made on first use."""
        path = self.root / "secrets" / name
        if not path.exists():
            write_private(path, secrets.token_urlsafe(48))
        return path.read_text(encoding="ascii").strip()


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all; the first writer wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        Path(draft).unlink()
