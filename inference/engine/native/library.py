"""The C library, loaded: its functions by name, and what this build of it can do.

A library whose structures are not laid out as ours is refused. Knows nothing of models.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int64, c_void_p
from enum import IntFlag
from pathlib import Path
from typing import Any

from inference.engine.native.structures import (
    LAYOUT,
    DecodesStruct,
    LinearStruct,
    ModelStruct,
    PagesStruct,
    PrefillStruct,
    RowsStruct,
    StepStruct,
)

_PAGES, _DECODES, _ROWS = POINTER(PagesStruct), POINTER(DecodesStruct), POINTER(RowsStruct)
_PREFILL, _LINEAR = POINTER(PrefillStruct), POINTER(LinearStruct)
_MODEL, _STEP = POINTER(ModelStruct), POINTER(StepStruct)


class Feature(IntFlag):
    """What the compiler and the machine gave this build."""

    THREADS = 1
    BYTE_PRODUCTS = 2
    BFLOAT16_PRODUCTS = 4


class Library:
    """The functions of the library at `path`. While one runs, other Python threads run too.

    Raises `OSError` if the file cannot be loaded, `ValueError` if it is not our library.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded = ctypes.CDLL(str(path))
        self._check_layout()
        self.features = Feature(self._function("features", [], c_int64)())
        self.scratch_bytes = self._function("scratch_bytes", [_MODEL, _STEP], c_int64)
        self.forward = self._function("forward", [_MODEL, _STEP])
        self.logits = self._function("logits", [_MODEL, _STEP, c_void_p])
        self.linear_bytes = self._function("linear_bytes", [_LINEAR, c_int64], c_int64)
        product = [_LINEAR, c_void_p, c_int64, c_void_p, c_void_p, c_int64]
        self.linear = self._function("linear", product)
        self.decode_bytes = self._function("decode_bytes", [_PAGES, _DECODES], c_int64)
        self.decode = self._function("decode", [_PAGES, _DECODES, _ROWS, c_void_p, c_int64])
        self.prefill_bytes = self._function("prefill_bytes", [_PAGES, c_int64], c_int64)
        self.prefill = self._function("prefill", [_PAGES, _PREFILL, _ROWS, c_void_p, c_int64])

    def _function(self, name: str, arguments: list[Any], result: Any = None) -> Any:
        try:
            found = getattr(self._loaded, f"haltline_{name}")
        except AttributeError as error:
            raise ValueError(f"{self._path.name} lacks the function {name}") from error
        found.argtypes, found.restype = arguments, result
        return found

    def _check_layout(self) -> None:
        found = (c_int64 * len(LAYOUT))()
        self._function("layout", [c_void_p])(found)
        if list(found) != [ctypes.sizeof(each) for each in LAYOUT]:
            raise ValueError(f"{self._path.name} lays its structures out differently")
