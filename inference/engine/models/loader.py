"""The parts of a Llama-family model out of its weights: which tensors make which layer.

Products that share their input are made one. What kind of linear is made is the caller's choice.
Knows no file format and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from inference.engine.layers.norm import RmsNorm
from inference.engine.models.config import ModelConfig
from inference.engine.models.weights import WeightSource, take

L = TypeVar("L")


class LayerLoader(Generic[L]):
    """Takes checked weights from a source, in one type and place, and makes layers of them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        make_linear: Callable[[torch.Tensor, torch.Tensor | None], L],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self._weights = weights
        self._make_linear = make_linear
        self._dtype = dtype
        self._device = device

    def weight(self, name: str, *shape: int, kind: str = "weight") -> torch.Tensor:
        found = take(self._weights, f"{name}.{kind}", shape)
        return found.to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, size: int) -> RmsNorm:
        return RmsNorm(self.weight(name, size), self.config.norm_eps)

    def head(self) -> torch.Tensor:
        return self.weight("lm_head", self.config.vocab_size, self.config.hidden_size)

    def head_norms(self, name: str) -> tuple[RmsNorm | None, RmsNorm | None]:
        if not self.config.qk_norm:
            return None, None
        size = self.config.head_dim
        return self.norm(f"{name}.q_norm", size), self.norm(f"{name}.k_norm", size)

    def attention(self, name: str) -> tuple[L, L]:
        """The three input projections as one product, and the output projection."""
        config, hidden = self.config, self.config.hidden_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        named = {f"{name}.{part}": size for part, size in parts.items()}
        output = {f"{name}.o_proj": hidden}
        return (
            self._linear(named, hidden, biased=config.qkv_bias),
            self._linear(output, queries, biased=config.output_bias),
        )

    def mlp(self, name: str) -> tuple[L, L]:
        """Gate and up projection as one product, and the down projection."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        biased = self.config.mlp_bias
        wide = {f"{name}.gate_proj": inner, f"{name}.up_proj": inner}
        return (
            self._linear(wide, hidden, biased=biased),
            self._linear({f"{name}.down_proj": hidden}, inner, biased=biased),
        )

    def _linear(self, parts: dict[str, int], size: int, *, biased: bool) -> L:
        weight = torch.cat([self.weight(name, rows, size) for name, rows in parts.items()])
        if not biased:
            return self._make_linear(weight, None)
        bias = [self.weight(name, rows, kind="bias") for name, rows in parts.items()]
        return self._make_linear(weight, torch.cat(bias))
