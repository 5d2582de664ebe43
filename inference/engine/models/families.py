"""The families that the engine runs, and in what each differs from plain Llama.

Pure data, keyed by the names that transformers' configs and GGUF files use. A family that is
missing here is refused by name. Knows no file format and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from inference.engine.models.errors import UnsupportedModelError


class Biases(StrEnum):
    """Where the attention's linear layers carry biases."""

    NEVER = "never"
    QKV = "qkv"
    CONFIGURED = "configured"


class Windows(StrEnum):
    """Which layers look back only a fixed number of tokens."""

    NEVER = "never"
    EVERY_LAYER = "every layer"
    BY_LAYER_TYPE = "by layer type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    `interleaved_in_gguf`: GGUF stores its query and key rows in the rotary order of the original
    Llama code, pair by pair, and they must be put back half by half.
    """

    name: str
    default_theta: float = 10_000.0
    biases: Biases = Biases.NEVER
    mlp_bias_configured: bool = False
    qk_norm: bool = False
    windows: Windows = Windows.NEVER
    no_rope_interval: int = 0
    interleaved_in_gguf: bool = False
    tied_by_default: bool = False


LLAMA = Family(
    name="llama", biases=Biases.CONFIGURED, mlp_bias_configured=True, interleaved_in_gguf=True
)
MISTRAL = Family(name="mistral", windows=Windows.EVERY_LAYER, interleaved_in_gguf=True)
QWEN2 = Family(name="qwen2", biases=Biases.QKV, windows=Windows.BY_LAYER_TYPE)
QWEN3 = Family(name="qwen3", biases=Biases.CONFIGURED, qk_norm=True, windows=Windows.BY_LAYER_TYPE)
SMOLLM3 = Family(
    name="smollm3",
    default_theta=2_000_000.0,
    biases=Biases.CONFIGURED,
    mlp_bias_configured=True,
    windows=Windows.BY_LAYER_TYPE,
    no_rope_interval=4,
    interleaved_in_gguf=True,
    tied_by_default=True,
)

BY_ARCHITECTURE = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "SmolLM3ForCausalLM": SMOLLM3,
}
BY_GGUF_NAME = {family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3)}


def family_named(name: str, *, among: dict[str, Family]) -> Family:
    """The family of that name; `UnsupportedModelError` lists what there is."""
    if name not in among:
        msg = f"architecture {name!r} is not supported; supported are {', '.join(sorted(among))}"
        raise UnsupportedModelError(msg)
    return among[name]
