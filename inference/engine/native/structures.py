"""The C library's structures, field by field; their meaning is told in its headers.

All addresses are plain integers: whoever fills a structure keeps the tensors behind it alive.
"""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64, c_void_p
from enum import IntEnum


class Kind(IntEnum):
    """How values lie in memory."""

    FLOAT32 = 0
    BFLOAT16 = 1
    GROUPED8 = 2
    GROUPED4 = 3


def _fields(integers: str, pointers: str = "") -> list[tuple[str, type[c_int64 | c_void_p]]]:
    whole: list[tuple[str, type[c_int64 | c_void_p]]] = [(n, c_int64) for n in integers.split()]
    return whole + [(name, c_void_p) for name in pointers.split()]


class LinearStruct(Structure):
    _fields_ = _fields("kind inputs outputs", "panels bias")


class PagesStruct(Structure):
    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        *_fields("kind heads kv_heads head_dim block_size span"),
    ]


class DecodesStruct(Structure):
    _fields_ = _fields("rows width", "pages lengths")


class PrefillStruct(Structure):
    _fields_ = _fields("first count start width", "pages")


class RowsStruct(Structure):
    _fields_ = [
        ("queries", c_void_p),
        ("found", c_void_p),
        *_fields("query_stride found_stride"),
    ]


class LayerStruct(Structure):
    _fields_ = [
        ("qkv", LinearStruct),
        ("output", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        *_fields("", "attention_norm mlp_norm query_norm key_norm"),
        ("rotates", c_int64),
        ("pages", PagesStruct),
    ]


class ModelStruct(Structure):
    _fields_ = [
        *_fields("hidden inner heads kv_heads head_dim layers"),
        ("eps", c_double),
        *_fields("", "layer cosines sines norm"),
        ("head", LinearStruct),
    ]


class StepStruct(Structure):
    _fields_ = [
        *_fields("tokens prefill_count threads", "states positions slots"),
        ("decodes", DecodesStruct),
        *_fields("", "prefills scratch"),
    ]


LAYOUT: tuple[type[Structure], ...] = (
    LinearStruct,
    PagesStruct,
    DecodesStruct,
    PrefillStruct,
    RowsStruct,
    LayerStruct,
    ModelStruct,
    StepStruct,
)
