"""The Llama family's forward pass by the C kernels: all layers of a step in one call. CPU only.

The same model as `Llama`, for the same callers. Between two products everything is float32;
`placement.dtype` is the type of the cache. Weights are float32, bfloat16, or integers of at most
eight bits. It knows nothing of files, sequences or sampling.
"""

from __future__ import annotations

import time
from ctypes import addressof
from typing import Any

import torch
from torch.nn import functional

from inference.engine.kv_cache import KvCache
from inference.engine.layers.native_attention import (
    can_attend,
    decodes_struct,
    pages_struct,
    prefill_struct,
)
from inference.engine.layers.native_linear import NativeLinear, native_linear_maker
from inference.engine.layers.rope import RotaryTable
from inference.engine.layers.step import Span, StepInputs
from inference.engine.models.config import ModelConfig
from inference.engine.models.loader import LayerLoader
from inference.engine.models.placement import Placement
from inference.engine.models.thread_choice import ThreadChoice
from inference.engine.models.weights import WeightSource
from inference.engine.native.library import Library
from inference.engine.native.packing import can_pack
from inference.engine.native.structures import (
    Kind,
    LayerStruct,
    ModelStruct,
    PrefillStruct,
    StepStruct,
)

_CPU = torch.device("cpu")
_LANES = 16


def can_run_native(config: ModelConfig, placement: Placement, kind: Kind) -> bool:
    """Whether the kernels fit this model: its sizes, and where it is to be."""
    rows = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    fits = all(size % _LANES == 0 and can_pack(kind, inputs=size) for size in rows)
    head, dtype, device = config.head_dim, placement.dtype, placement.device
    return fits and can_attend(head_dim=head, dtype=dtype, device=device)


class NativeLlama:
    """A model in memory, computed by `library`. Used from one thread.

    Raises `ModelError` where the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        placement: Placement,
        *,
        library: Library,
        kind: Kind,
    ) -> None:
        self.config = config
        self.placement = placement
        self._library = library
        maker = native_linear_maker(library, kind)
        loader = LayerLoader(config, weights, maker, dtype=torch.float32, device=_CPU)
        embedding = loader.weight("model.embed_tokens", config.vocab_size, config.hidden_size)
        self._head = maker(embedding if config.tied_head else loader.head(), None)
        self._embedding = embedding.to(placement.dtype)
        self._layers = [_Layer(loader, number) for number in range(config.num_layers)]
        self._norm = loader.weight("model.norm", config.hidden_size)
        self._rotary = RotaryTable(
            config.rope, head_dim=config.head_dim, length=placement.max_tokens, device=_CPU
        )
        self._structs = (LayerStruct * config.num_layers)(*[each.struct for each in self._layers])
        self._struct = self._model_struct()
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._cache: KvCache | None = None
        self._choice = ThreadChoice()

    @property
    def masked_spans(self) -> tuple[Span, ...]:
        """None: the kernels know by themselves what a token may see."""
        return ()

    @property
    def num_bytes(self) -> int:
        """Memory that the weights hold."""
        linears = [self._head, *(linear for each in self._layers for linear in each.linears)]
        return self._embedding.nbytes + sum(linear.num_bytes for linear in linears)

    def forward(self, step: StepInputs, cache: KvCache) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose keys and values are then cached."""
        self._attach(cache)
        hidden = functional.embedding(step.token_ids, self._embedding).float()
        kv_heads = self.config.num_kv_heads
        prefills = [prefill_struct(rows, kv_heads) for rows in step.prefills]
        chunks = (PrefillStruct * len(prefills))(*prefills)
        struct = self._step_struct(
            hidden,
            prefill_count=len(prefills),
            positions=step.positions.data_ptr(),
            slots=step.slots.data_ptr(),
            decodes=decodes_struct(step.decode),
            prefills=addressof(chunks),
        )
        started = time.perf_counter()
        self._library.forward(self._struct, struct)
        self._choice.took(len(hidden), struct.threads, time.perf_counter() - started)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [R, vocab] of those rows of hidden states [R, hidden]."""
        rows = hidden.contiguous()
        found = torch.empty(len(rows), self.config.vocab_size)
        self._library.logits(self._struct, self._step_struct(rows), found.data_ptr())
        return found

    def _step_struct(self, hidden: torch.Tensor, **more: Any) -> StepStruct:
        """With enough scratch memory, which is kept for the next step."""
        threads = self._choice.threads(len(hidden), torch.get_num_threads())
        struct = StepStruct(tokens=len(hidden), threads=threads, states=hidden.data_ptr(), **more)
        size = self._library.scratch_bytes(self._struct, struct)
        if size > len(self._scratch):
            self._scratch = torch.empty(size, dtype=torch.uint8)
        struct.scratch = self._scratch.data_ptr()
        return struct

    def _model_struct(self) -> ModelStruct:
        config = self.config
        return ModelStruct(
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            layers=config.num_layers,
            eps=config.norm_eps,
            layer=addressof(self._structs),
            cosines=self._rotary.cos.data_ptr(),
            sines=self._rotary.sin.data_ptr(),
            norm=self._norm.data_ptr(),
            head=self._head.struct,
        )

    def _attach(self, cache: KvCache) -> None:
        """Tell each layer where its pages are; they are the same from step to step."""
        if cache is self._cache:
            return
        for number, layer in enumerate(cache.layers):
            span = self.config.windows[number]
            self._structs[number].pages = pages_struct(layer, self.config.num_heads, span)
        self._cache = cache


class _Layer:
    """One layer's weights, kept alive, and the structure that points to them."""

    def __init__(self, loader: LayerLoader[NativeLinear], number: int) -> None:
        config, name = loader.config, f"model.layers.{number}"
        qkv, output = loader.attention(f"{name}.self_attn")
        gate_up, down = loader.mlp(f"{name}.mlp")
        self.linears = [qkv, output, gate_up, down]
        names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        self._norms = {
            key: loader.weight(f"{name}.{own}", config.hidden_size) for key, own in names.items()
        }
        if config.qk_norm:
            for key, own in {"query_norm": "q_norm", "key_norm": "k_norm"}.items():
                self._norms[key] = loader.weight(f"{name}.self_attn.{own}", config.head_dim)
        self.struct = LayerStruct(
            qkv=qkv.struct,
            output=output.struct,
            gate_up=gate_up.struct,
            down=down.struct,
            rotates=int(config.rope_layers[number]),
            **{key: norm.data_ptr() for key, norm in self._norms.items()},
        )
