"""A Llama-family model out of a GGUF file: its configuration, and its weights under our names.

llama.cpp stores the query and key rows of some families in pairs, for its own rotary kernel; they
are put back in halves here. Knows nothing of quantization.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from inference.engine.models.config import (
    LARGEST_DEPTH,
    LARGEST_SIZE,
    ModelConfig,
    RopeConfig,
    RopeKind,
)
from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.families import BY_GGUF_NAME, Family, Windows, family_named
from inference.engine.models.fields import Fields
from inference.engine.models.gguf_file import GgufFile

_WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SCALINGS = {"none": RopeKind.DEFAULT, "linear": RopeKind.LINEAR, "yarn": RopeKind.YARN}


class GgufWeights:
    """A `WeightSource` over an open GGUF file."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._interleaved = BY_GGUF_NAME[config.architecture].interleaved_in_gguf

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        if not self.has(name):
            msg = f"tensor {gguf_name(name)!r} is missing from {self._file.path.name}"
            raise CorruptModelError(msg)
        found = torch.from_numpy(self._file.dequantized(gguf_name(name)))
        if not self._interleaved:
            return found
        if ".q_proj." in name:
            return halves_from_pairs(found, self._config.num_heads)
        return halves_from_pairs(found, self._config.num_kv_heads) if ".k_proj." in name else found


def gguf_name(name: str) -> str:
    """What a GGUF file calls that tensor."""
    layer = _LAYER.fullmatch(name)
    if layer:
        return f"blk.{layer[1]}.{_IN_LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_WHOLE[stem]}.{kind}"


def halves_from_pairs(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder each head's output rows from (x0 y0 x1 y1 …) to (x0 x1 … y0 y1 …)."""
    if rows.shape[0] % (2 * heads):
        return rows  # the shape check that follows names the tensor
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration that the file's metadata and tensor table describe.

    Raises `UnsupportedModelError` for an architecture that is not of the Llama family and
    `CorruptModelError` for missing or senseless values.
    """
    name = Fields(file.metadata, file.path.name).text("general.architecture")
    family = family_named(name, among=BY_GGUF_NAME)
    fields = _Prefixed(file, name)
    if fields.has("expert_count") and fields.integer("expert_count"):
        msg = f"{file.path.name}: mixtures of experts are not supported"
        raise UnsupportedModelError(msg)
    return _config(file, fields, family)


class _Prefixed(Fields):
    """The metadata of the file's architecture, without its prefix."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        start = f"{architecture}."
        own = {k.removeprefix(start): v for k, v in file.metadata.items() if k.startswith(start)}
        super().__init__(own, f"{file.path.name}: {architecture}")


def _config(file: GgufFile, fields: Fields, family: Family) -> ModelConfig:
    heads = _heads(fields)
    hidden = fields.integer("embedding_length")
    layers = fields.count("block_count", most=LARGEST_DEPTH)
    return ModelConfig(
        architecture=family.name,
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=fields.integer("attention.key_length", hidden // heads),
        max_position=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, fields, family),
        tied_head="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        rope_layers=_rope_layers(family, layers),
        windows=_windows(fields, family, layers),
        eos_ids=_eos_ids(file),
    )


def _heads(fields: Fields) -> int:
    return fields.count("attention.head_count", most=LARGEST_SIZE)


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        msg = f"{file.path.name}: tensor 'token_embd.weight' is missing"
        raise CorruptModelError(msg)
    return file.tensors["token_embd.weight"].shape[0]


def _rope(file: GgufFile, fields: Fields, family: Family) -> RopeConfig:
    _refuse_partial_rope(fields)
    kind = _scaling_kind(fields.text("rope.scaling.type", "none"))
    scaling: dict[str, Any] = {}
    if kind is not RopeKind.DEFAULT:
        length = fields.integer("context_length")
        scaling["kind"] = kind
        scaling["factor"] = fields.number("rope.scaling.factor")
        scaling["original_max_position"] = fields.integer(
            "rope.scaling.original_context_length", length
        )
    return RopeConfig(
        theta=fields.number("rope.freq_base", family.default_theta),
        frequency_divisors=_frequency_divisors(file),
        **scaling,
    )


def _scaling_kind(name: str) -> RopeKind:
    if name not in _SCALINGS:
        msg = f"rotary scaling {name!r} is not supported; supported are {', '.join(_SCALINGS)}"
        raise UnsupportedModelError(msg)
    return _SCALINGS[name]


def _refuse_partial_rope(fields: Fields) -> None:
    heads = _heads(fields)
    size = fields.integer("attention.key_length", fields.integer("embedding_length") // heads)
    if fields.integer("rope.dimension_count", size) != size:
        msg = "a rotary embedding over a part of each head is not supported"
        raise UnsupportedModelError(msg)


def _frequency_divisors(file: GgufFile) -> tuple[float, ...]:
    """Llama 3's stretched frequencies, which GGUF keeps as a tensor."""
    if "rope_freqs.weight" not in file.tensors:
        return ()
    return tuple(map(float, file.dequantized("rope_freqs.weight").ravel()))


def _rope_layers(family: Family, layers: int) -> tuple[bool, ...]:
    every = family.no_rope_interval
    return tuple(not every or (layer + 1) % every != 0 for layer in range(layers))


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    slides = family.windows is Windows.EVERY_LAYER and fields.has("attention.sliding_window")
    return (fields.integer("attention.sliding_window") if slides else None,) * layers


def _eos_ids(file: GgufFile) -> frozenset[int]:
    found = (file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
    return frozenset(each for each in found if isinstance(each, int))
