"""Reads the `config.json` of a transformers model folder into a `ModelConfig`.

Takes the old spelling of the rotary settings (`rope_theta`, `rope_scaling`) and the new one
(`rope_parameters`). Knows nothing of weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.engine.models.config import (
    LARGEST_DEPTH,
    LARGEST_SIZE,
    ModelConfig,
    RopeConfig,
    RopeKind,
)
from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.families import (
    BY_ARCHITECTURE,
    Biases,
    Family,
    Windows,
    family_named,
)
from inference.engine.models.fields import Fields

_LARGEST_JSON = 64 << 20


def read_hf_config(folder: Path) -> ModelConfig:
    """The configuration of the model in that folder.

    Raises `CorruptModelError` for a missing or malformed file, `UnsupportedModelError` for a
    family, activation, rotary rule or quantization that the engine does not run.
    """
    fields = Fields(read_json(folder / "config.json"), "config.json")
    family = _family(fields)
    _refuse_unsupported(fields)
    return config_from_fields(fields, family, eos_ids=_eos_ids(folder, fields))


def config_from_fields(fields: Fields, family: Family, *, eos_ids: frozenset[int]) -> ModelConfig:
    heads = fields.count("num_attention_heads", most=LARGEST_SIZE)
    hidden = fields.integer("hidden_size")
    biased = family.biases is Biases.CONFIGURED and fields.flag("attention_bias", default=False)
    tied = fields.flag("tie_word_embeddings", default=family.tied_by_default)
    return ModelConfig(
        architecture=family.name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=_depth(fields),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads),
        max_position=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields, family),
        tied_head=tied,
        qkv_bias=biased or family.biases is Biases.QKV,
        output_bias=biased,
        mlp_bias=family.mlp_bias_configured and fields.flag("mlp_bias", default=False),
        qk_norm=family.qk_norm,
        rope_layers=_rope_layers(fields, family),
        windows=_windows(fields, family),
        eos_ids=eos_ids,
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in that file; `CorruptModelError` says what is wrong with it."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            msg = f"{path.name} is too large to be true"
            raise CorruptModelError(msg)
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        msg = f"{path.name} is missing from {path.parent}"
        raise CorruptModelError(msg) from error
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path.name} cannot be read: {error}"
        raise CorruptModelError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path.name} must hold an object"
        raise CorruptModelError(msg)
    return found


def _family(fields: Fields) -> Family:
    names = fields.items("architectures")
    if len(names) != 1 or not isinstance(names[0], str):
        msg = f"{fields.origin} must name one architecture, not {names!r:.80}"
        raise CorruptModelError(msg)
    return family_named(names[0], among=BY_ARCHITECTURE)


def _refuse_unsupported(fields: Fields) -> None:
    if fields.has("quantization_config"):
        method = fields.inner("quantization_config").text("quant_method", "unnamed")
        msg = f"quantization method {method!r} is not supported"
        raise UnsupportedModelError(msg)
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        msg = f"activation {activation!r} is not supported"
        raise UnsupportedModelError(msg)


def _rope(fields: Fields, family: Family) -> RopeConfig:
    given = fields.inner("rope_parameters")
    if not given.values:
        given = fields.inner("rope_scaling")
    theta = given.number("rope_theta", fields.number("rope_theta", family.default_theta))
    partial = given.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        msg = "a rotary embedding over a part of each head is not supported"
        raise UnsupportedModelError(msg)
    position = fields.integer("max_position_embeddings")
    return RopeConfig(theta=theta, **_rope_scaling(given, position))


def _rope_scaling(given: Fields, max_position: int) -> dict[str, Any]:
    kind = _rope_kind(given.text("rope_type", given.text("type", "default")))
    if kind is RopeKind.DEFAULT:
        return {}
    original = given.integer("original_max_position_embeddings", max_position)
    by_length = max_position / max(original, 1)
    return {
        "kind": kind,
        "factor": given.number("factor", by_length if kind is RopeKind.YARN else None),
        "original_max_position": original,
        "low_freq_factor": given.number("low_freq_factor", 1.0),
        "high_freq_factor": given.number("high_freq_factor", 4.0),
        "beta_fast": given.number("beta_fast", 32.0),
        "beta_slow": given.number("beta_slow", 1.0),
        "attention_factor": given.number_or_none("attention_factor"),
        "mscale": given.number_or_none("mscale"),
        "mscale_all_dim": given.number_or_none("mscale_all_dim"),
        "truncate": given.flag("truncate", default=True),
    }


def _rope_kind(name: str) -> RopeKind:
    try:
        return RopeKind(name)
    except ValueError as error:
        msg = f"rotary scaling {name!r} is not supported; supported are {', '.join(RopeKind)}"
        raise UnsupportedModelError(msg) from error


def _depth(fields: Fields) -> int:
    return fields.count("num_hidden_layers", most=LARGEST_DEPTH)


def _rope_layers(fields: Fields, family: Family) -> tuple[bool, ...]:
    layers = _depth(fields)
    if not family.no_rope_interval:
        return (True,) * layers
    if fields.has("no_rope_layers"):
        return tuple(bool(each) for each in fields.items("no_rope_layers"))[:layers]
    interval = max(fields.integer("no_rope_layer_interval", family.no_rope_interval), 1)
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


def _windows(fields: Fields, family: Family) -> tuple[int | None, ...]:
    layers = _depth(fields)
    if family.windows is Windows.NEVER or not fields.has("sliding_window"):
        return (None,) * layers
    span = fields.integer("sliding_window")
    if family.windows is Windows.EVERY_LAYER:
        return (span,) * layers
    if not fields.flag("use_sliding_window", default=False):
        return (None,) * layers
    kinds = fields.items("layer_types") or _layer_types(fields, family)
    return tuple(span if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(fields: Fields, family: Family) -> list[str]:
    """The layer kinds that transformers derives where an older config does not list them."""
    layers = range(_depth(fields))
    if family.no_rope_interval:
        slides = [not rotates for rotates in _rope_layers(fields, family)]
    else:
        first = fields.integer("max_window_layers", 28)
        slides = [layer >= first for layer in layers]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _eos_ids(folder: Path, fields: Fields) -> frozenset[int]:
    """What ends a text: generation_config.json and config.json together."""
    found = [fields.values.get("eos_token_id")]
    if (folder / "generation_config.json").is_file():
        found.append(read_json(folder / "generation_config.json").get("eos_token_id"))
    flat = [each for part in found for each in (part if isinstance(part, list) else [part])]
    return frozenset(each for each in flat if isinstance(each, int))
