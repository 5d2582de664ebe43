#!/usr/bin/env python
"""The entry of every Django-side process: `manage.py serve`, `web`, `pull`, `engine`, …"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    # `platform/` is a source root, not a package: as one it would hide the standard library's.
    sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "haltline.settings")
    from django.core.management import execute_from_command_line

    from haltline.env import SettingError

    try:
        execute_from_command_line(sys.argv)
    except SettingError as problem:
        sys.stderr.write(f"error: {problem}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
