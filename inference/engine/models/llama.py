"""The Llama family's forward pass, once for all: flat over the tokens of a step, eager.

What differs between families is in `ModelConfig`; how a product or an attention is computed is
behind `Linear` and `AttentionKernel`. It knows nothing of files, sequences or sampling.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.engine.kv_cache import KvCache, LayerCache
from inference.engine.layers.attention import AttentionKernel, SdpaAttention, attend
from inference.engine.layers.linear import Linear, LinearMaker, linear_maker
from inference.engine.layers.rope import RotaryTable, rotate
from inference.engine.layers.step import Span, StepInputs
from inference.engine.models.config import ModelConfig
from inference.engine.models.loader import LayerLoader
from inference.engine.models.placement import Placement
from inference.engine.models.weights import WeightSource


class Llama:
    """A model in memory. Immutable: new weights are a new `Llama`.

    Raises `ModelError` where the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        placement: Placement,
        *,
        kernel: AttentionKernel | None = None,
        make_linear: LinearMaker | None = None,
    ) -> None:
        self.config = config
        self.placement = placement
        self.kernel = kernel or SdpaAttention()
        maker = make_linear or linear_maker(device=placement.device, dtype=placement.dtype)
        loader = LayerLoader(config, weights, maker, dtype=placement.dtype, device=placement.device)
        self._embedding = loader.weight("model.embed_tokens", config.vocab_size, config.hidden_size)
        self._layers = [_Layer(loader, number) for number in range(config.num_layers)]
        self._rotary = RotaryTable(
            config.rope,
            head_dim=config.head_dim,
            length=placement.max_tokens,
            device=placement.device,
        )
        self._norm = loader.norm("model.norm", config.hidden_size)
        self._head = maker(self._embedding if config.tied_head else loader.head(), None)

    @property
    def masked_spans(self) -> tuple[Span, ...]:
        return self.config.windows

    def forward(self, step: StepInputs, cache: KvCache) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose keys and values are then cached."""
        hidden = functional.embedding(step.token_ids, self._embedding)
        rotation = self._rotary.at(step.positions)
        for layer, layer_cache in zip(self._layers, cache.layers, strict=True):
            hidden = layer(hidden, rotation, step, layer_cache, self.kernel)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [R, vocab] of those rows of hidden states [R, hidden]."""
        return self._head(self._norm(hidden)).float()


class _Layer:
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, loader: LayerLoader[Linear], number: int) -> None:
        config, name = loader.config, f"model.layers.{number}"
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._size = config.head_dim
        self._rotates = config.rope_layers[number]
        self._span: Span = config.windows[number]
        self._attention_norm = loader.norm(f"{name}.input_layernorm", config.hidden_size)
        self._qkv, self._output = loader.attention(f"{name}.self_attn")
        self._q_norm, self._k_norm = loader.head_norms(f"{name}.self_attn")
        self._mlp_norm = loader.norm(f"{name}.post_attention_layernorm", config.hidden_size)
        self._gate_up, self._down = loader.mlp(f"{name}.mlp")

    def __call__(
        self,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        step: StepInputs,
        cache: LayerCache,
        kernel: AttentionKernel,
    ) -> torch.Tensor:
        q, k, v = self._projected(self._attention_norm(hidden), rotation)
        cache.write(step.slots, k, v)
        mixed = attend(
            kernel, q, cache, decode=step.decode, prefills=step.prefills, span=self._span
        )
        hidden = hidden + self._output(mixed.flatten(1))
        return hidden + self._fed_forward(self._mlp_norm(hidden))

    def _projected(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [T, heads, head_dim], normed and rotated as the layer wants."""
        heads = self._qkv(x).view(x.shape[0], sum(self._heads), self._size)
        q, k, v = torch.split(heads, list(self._heads), dim=1)
        if self._q_norm and self._k_norm:
            q, k = self._q_norm(q), self._k_norm(k)
        if self._rotates:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return q, k, v

    def _fed_forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(functional.silu(gate) * up)
