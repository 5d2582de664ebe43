"""What a Llama-family model looks like: sizes, rotary embedding, biases, per-layer choices.

One frozen description for every family and file format; it is checked when it is made, so that the
forward pass can trust it. It knows nothing of files, tensors or devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from inference.engine.models.errors import CorruptModelError

LARGEST_SIZE = 1 << 24
LARGEST_DEPTH = 1024


class RopeKind(StrEnum):
    """How the rotary frequencies are stretched beyond the trained context."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. `frequency_divisors`, where a file carries them, replace the kind's rule.

    Names and meanings are those of `rope_parameters` in a transformers config.
    """

    theta: float = 10_000.0
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check("rope theta", self.theta, that=self.theta > 1.0)
        _check("rope factor", self.factor, that=self.factor > 0.0)
        if self.kind in (RopeKind.LLAMA3, RopeKind.YARN):
            known = self.original_max_position > 0
            _check("rope original context", self.original_max_position, that=known)
        turns = (self.beta_slow, self.beta_fast)
        _check("rope beta", turns, that=min(turns) > 0.0)
        if self.kind is RopeKind.LLAMA3:
            low, high = self.low_freq_factor, self.high_freq_factor
            _check("rope frequency factors", (low, high), that=0 < low < high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes are in elements.

    `rope_layers` says which layers rotate; `windows` gives each layer's attention span in tokens
    (None: everything before it).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope: RopeConfig = field(default_factory=RopeConfig)
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_layers: tuple[bool, ...]
    windows: tuple[int | None, ...]
    eos_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            _check(name, size, that=0 < size <= LARGEST_SIZE)
        _check("number of layers", self.num_layers, that=self.num_layers <= LARGEST_DEPTH)
        _check("head size", self.head_dim, that=self.head_dim % 2 == 0)
        heads = (self.num_heads, self.num_kv_heads)
        _check("heads and key-value heads", heads, that=heads[0] % heads[1] == 0)
        _check("norm epsilon", self.norm_eps, that=0.0 <= self.norm_eps < 1.0)
        each = len(self.rope_layers) == len(self.windows) == self.num_layers
        _check("rope layers and windows", "one is needed for each layer", that=each)
        spans = all(span is None or span > 0 for span in self.windows)
        _check("windows", self.windows, that=spans)

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position",
)


def _check(what: str, found: object, *, that: bool) -> None:
    if not that:
        msg = f"the model's configuration is wrong: {what}: {found}"
        raise CorruptModelError(msg)
