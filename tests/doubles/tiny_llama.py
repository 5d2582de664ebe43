"""A random Llama of some hundred kilobytes, as a real model folder with a byte tokenizer.

It writes nonsense letters, fast, and never the same one for long: the head favours letters and
spaces, so answers are readable, valid UTF-8 and do not end by themselves. The same seed gives the
same model.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tests.doubles.byte_tokenizer import BOS, EOS, SPECIAL, TURN_END, VOCAB_SIZE

_LETTERS = [ord(letter) for letter in string.ascii_lowercase + "  "]
_TEMPLATE = (
    "<bos>{% for message in messages %}<turn>{{ message['role'] + '\\n' + message['content'] }}"
    "</turn>{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": [EOS, TURN_END],
}


def write_tiny_llama(folder: Path, *, seed: int = 1) -> Path:
    """Make the model in `folder`, which is created, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    save_file(tiny_weights(seed), folder / "model.safetensors", {"format": "pt"})
    _byte_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config()))
    return folder


def tiny_weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden, inner, keys = 64, 128, 32

    def drawn(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * scale

    weights = {"model.embed_tokens.weight": drawn(VOCAB_SIZE, hidden, scale=1.0)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": torch.ones(hidden),
            f"{name}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{name}.self_attn.q_proj.weight": drawn(hidden, hidden, scale=0.3),
            f"{name}.self_attn.k_proj.weight": drawn(keys, hidden, scale=0.3),
            f"{name}.self_attn.v_proj.weight": drawn(keys, hidden, scale=0.3),
            f"{name}.self_attn.o_proj.weight": drawn(hidden, hidden, scale=0.3),
            f"{name}.mlp.gate_proj.weight": drawn(inner, hidden, scale=0.2),
            f"{name}.mlp.up_proj.weight": drawn(inner, hidden, scale=0.2),
            f"{name}.mlp.down_proj.weight": drawn(hidden, inner, scale=0.2),
        }
    head = drawn(VOCAB_SIZE, hidden, scale=0.02)
    head[_LETTERS] *= 30.0
    head[_LETTERS] -= 0.2 * weights["model.embed_tokens.weight"][_LETTERS]  # less of the same
    return weights | {"model.norm.weight": torch.ones(hidden), "lm_head.weight": head}


def _byte_backend() -> Tokenizer:
    """The same ids as `ByteTokenizer`: bytes first, then the special tokens."""
    letters = letters_of_bytes()
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL.values()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=["<bos>", "$A"], special_tokens=[("<bos>", BOS)]
    )
    return backend


def letters_of_bytes() -> list[str]:
    """How byte-level tokenizers write each byte.

    Printable ones stand for themselves, the others are letters from 256 on, in order.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
