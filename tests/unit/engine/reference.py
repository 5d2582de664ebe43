"""The default model in transformers, to compare with: two ways to get it there.

`quick_reference` puts the file's values into a model whose sizes are written down here, so it
depends on nothing of ours. `own_reference` is transformers' loader, which takes half a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from tests.doubles.tiny_gguf import gguf_name


def quick_reference(path: Path) -> Any:
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1_536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8_192,
            rope_theta=100_000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        )
    )
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    names = [name for name, _ in model.named_parameters()]
    weights = {name: _values(stored[gguf_name(name)]) for name in names}
    for name, weight in weights.items():
        heads = 9 if ".q_proj." in name else 3 if ".k_proj." in name else 0
        if heads:
            pairs = weight.reshape(heads, 32, 2, 576)
            weights[name] = torch.cat([pairs[:, :, 0], pairs[:, :, 1]], 1).reshape(weight.shape)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def own_reference(path: Path) -> Any:
    """That loader asks for `accelerate` before it starts, and then does without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.modeling_utils, "is_accelerate_available", lambda: True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
    return model.eval()


def _values(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
