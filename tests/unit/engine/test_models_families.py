"""Each family against transformers, on tiny random models of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inference.engine.models.files import open_model
from tests.unit.engine.model_bench import Mix, generated, greedy, logits_of, runner_of, theirs

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_SLIDING = {"use_sliding_window": True, "sliding_window": 24}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, one key-value head": ("Llama", {"num_key_value_heads": 1}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("Llama", {"head_dim": 32}),
    "llama, linear rope": ("Llama", {"rope_parameters": _LINEAR}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, yarn rope": ("Llama", {"rope_parameters": _YARN}),
    "llama, yarn rope with mscale": (
        "Llama",
        {"rope_parameters": _YARN | {"mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": ("Qwen2", _SLIDING | {"max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3, listed": ("SmolLM3", {"no_rope_layers": [0, 1, 1], "tie_word_embeddings": False}),
    "smollm3, windows": ("SmolLM3", _SLIDING | {"no_rope_layer_interval": 3}),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A random model in transformers, and the folder that it was saved to."""
    name, changes = request.param
    torch.set_num_threads(1)
    torch.manual_seed(11)
    config = getattr(transformers, f"{name}Config")(**_SIZES | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # biases and norms too, which start as constants
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    return model, tmp_path


def test_it_gives_the_logits_and_the_text_that_transformers_gives(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    random = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 300, (n,), generator=random).tolist() for n in (1, 5, 40, 90)]
    ours, expected = logits_of(open_model(folder), prompts[3]), theirs(model, prompts[3])
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
    wanted = {key: (prompt, greedy(16)) for key, prompt in enumerate(prompts)}
    outputs = Mix(runner_of(folder), step_tokens=24, max_running=4).run(wanted)
    assert outputs == {key: generated(model, prompt, 16) for key, prompt in enumerate(prompts)}
