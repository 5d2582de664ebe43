"""From the settings to a loaded engine: where torch comes in."""

from __future__ import annotations

import logging
import os
import time

from inference.weights import resolve
from inference.worker.config import WorkerConfig
from inference.worker.process import ReadyEngine

logger = logging.getLogger(__name__)


def prepare_environment(config: WorkerConfig) -> None:
    """What torch reads when it is imported."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages: weights are read faster
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if config.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)


def build(config: WorkerConfig) -> ReadyEngine:
    """Load the model. Raises `WeightsError` if it is not here, `ValueError` if it is unfit."""
    path = resolve(config.model, config.cache)
    prepare_environment(config)
    from inference.engine.engine import Engine
    from inference.engine.loading import fitted, load_engine_parts

    started = time.monotonic()
    parts = load_engine_parts(
        path,
        config=config.engine,
        dtype=config.dtype,
        device=config.device,
        threads=config.threads,
    )
    engine_config = fitted(config.engine, parts.model)
    engine = Engine(engine_config, parts.runner, parts.tokenizer)
    logger.info("loaded %s in %.1f s", path.name, time.monotonic() - started)
    return ReadyEngine(
        engine=engine,
        tokenizer=parts.tokenizer,
        max_model_len=engine_config.max_sequence_tokens,
    )
