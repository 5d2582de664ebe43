"""Writes tiny GGUF models: the tiny Llama's weights, stored as llama.cpp stores them.

Rows of queries and keys are put in pairs, as its converter does. By an independent writer, the
`gguf` package's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.doubles.byte_tokenizer import BOS, EOS, SPECIAL
from tests.doubles.tiny_llama import letters_of_bytes, tiny_weights

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
Kind = gguf.GGMLQuantizationType


def write_tiny_gguf(
    path: Path,
    *,
    kind: Kind = Kind.F32,
    seed: int = 1,
    architecture: str = "llama",
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> dict[str, torch.Tensor]:
    """Make the file; return the weights as they are after quantization, by transformers' names.

    Matrices are of type `kind`, vectors float32. `change` may add to the metadata.
    """
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer)
    change(writer)
    rounded = {}
    for name, weight in tiny_weights(seed).items():
        own = kind if weight.dim() > 1 else Kind.F32
        data = gguf.quantize(_paired(name, weight).numpy(), own)
        writer.add_tensor(gguf_name(name), data, raw_dtype=own)
        back = torch.from_numpy(np.array(gguf.dequantize(data, own), np.float32))
        rounded[name] = _paired(name, back.view(weight.shape), undo=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.weight"


def _paired(name: str, weight: torch.Tensor, *, undo: bool = False) -> torch.Tensor:
    heads = 4 if ".q_proj." in name else 2 if ".k_proj." in name else 0
    if not heads:
        return weight
    halves = (heads, -1, 2, weight.shape[1]) if undo else (heads, 2, -1, weight.shape[1])
    return weight.reshape(halves).transpose(1, 2).reshape(weight.shape).contiguous()


def _add_metadata(writer: Any) -> None:
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters_of_bytes(), *SPECIAL.values()])
    writer.add_token_types([1] * 256 + [3] * len(SPECIAL))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
