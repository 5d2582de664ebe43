"""The engine process: `python -m inference.worker`, configured by its environment alone.

With `--check` it only says whether the settings fit, and loads nothing. Exit codes: 0 after an
orderly end, 1 if the model cannot be served or the engine failed, 2 for a setting that does not
fit.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from inference.errors import HaltlineError
from inference.worker.building import build
from inference.worker.config import ConfigError, WorkerConfig, check_bus, from_environ
from inference.worker.process import run

logger = logging.getLogger("inference.worker")


def main(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.worker")
    parser.add_argument("--check", action="store_true", help="check the settings and end")
    only_check = parser.parse_args(arguments).check
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        config = from_environ()
        check_bus(config)
    except ConfigError as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 2
    return 0 if only_check else serve(config)


def serve(config: WorkerConfig) -> int:
    try:
        ready = build(config)
        return 0 if asyncio.run(run(config, ready)) else 1
    except (HaltlineError, ValueError, OSError) as problem:
        logger.error("cannot serve %s: %s", config.model, problem)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
