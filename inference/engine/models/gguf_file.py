"""Reads a GGUF file: its metadata, and each tensor dequantized to float32.

The header is parsed here rather than by the `gguf` package because a vocabulary of a hundred
thousand strings takes that reader seconds and this one a tenth of one, and because every count,
length and offset is checked against the file's size before it is used. The arithmetic of the
quantized blocks is `gguf`'s. Knows nothing of models.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.engine.models.errors import CorruptModelError, UnsupportedModelError

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. `shape` is row-major (the file's own order reversed)."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    stop: int


class GgufFile:
    """An open GGUF file. `metadata` maps its keys to Python values, `tensors` names to places.

    Raises `CorruptModelError` where the file is damaged or not GGUF, `UnsupportedModelError` for
    a version or tensor type that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _mapped(path)
        cursor = _Cursor(self._data, path.name)
        tensor_count, pair_count = _counts(cursor)
        self.metadata: dict[str, Any] = dict(cursor.pair() for _ in range(pair_count))
        places = [_tensor_place(cursor) for _ in range(tensor_count)]
        base = _aligned(cursor.position, self._alignment())
        self.tensors = {place[0]: self._located(place, base) for place in places}

    def dequantized(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """That tensor's values, float32, row-major, in memory of their own."""
        tensor = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.stop - tensor.start, tensor.start)
        flat = _dequantized(raw.reshape(*tensor.shape[:-1], -1), tensor)
        return np.array(flat.reshape(tensor.shape), np.float32, copy=True)

    def _alignment(self) -> int:
        found = self.metadata.get("general.alignment", 32)
        if not isinstance(found, int) or not 0 < found <= 1 << 20:
            msg = f"{self.path.name}: alignment {found!r} makes no sense"
            raise CorruptModelError(msg)
        return found

    def _located(self, place: tuple[str, tuple[int, ...], int, int], base: int) -> GgufTensor:
        name, shape, number, offset = place
        kind = _tensor_kind(name, number)
        start = base + offset
        stop = start + _byte_size(name, shape, kind)
        if stop > len(self._data):
            msg = f"{self.path.name} is cut short: tensor {name!r} ends beyond the file"
            raise CorruptModelError(msg)
        return GgufTensor(name, shape, kind, start, stop)


class _Cursor:
    """Reads forward through the header and never past the end of the file."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data = data
        self.name = name
        self.position = 0

    def scalar(self, layout: str) -> Any:
        start = self._advance(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, start)[0]

    def text(self) -> str:
        size = self.scalar("<Q")
        start = self._advance(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            msg = f"{self.name}: a text at byte {start} is not UTF-8"
            raise CorruptModelError(msg) from error

    def pair(self) -> tuple[str, Any]:
        key = self.text()
        return key, self.value(self.scalar("<I"))

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(self._layout(kind))

    def _array(self) -> list[Any]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind == _ARRAY:
            msg = f"{self.name}: lists of lists are not supported"
            raise UnsupportedModelError(msg)
        self._check_left(count)
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        layout = self._layout(kind)
        start = self._advance(count * struct.calcsize(layout))
        return list(struct.unpack_from(f"<{count}{layout[1]}", self.data, start))

    def _layout(self, kind: int) -> str:
        if kind not in _SCALARS:
            msg = f"{self.name}: unknown value type {kind} before byte {self.position}"
            raise CorruptModelError(msg)
        return _SCALARS[kind]

    def _advance(self, size: int) -> int:
        self._check_left(size)
        start = self.position
        self.position += size
        return start

    def _check_left(self, size: int) -> None:
        if size > len(self.data) - self.position:
            msg = f"{self.name} is cut short or damaged near byte {self.position}"
            raise CorruptModelError(msg)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read: {error}"
        raise CorruptModelError(msg) from error


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Tensors and metadata pairs; each takes at least a byte, so more than the file is a lie."""
    if bytes(cursor.data[:4]) != b"GGUF":
        msg = f"{cursor.name} is not a GGUF file"
        raise CorruptModelError(msg)
    cursor.position = 4
    version = cursor.scalar("<I")
    if version not in _VERSIONS:
        msg = f"{cursor.name}: GGUF version {version} is not supported"
        raise UnsupportedModelError(msg)
    return cursor.scalar("<Q"), cursor.scalar("<Q")


def _tensor_place(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.text()
    dimensions = cursor.scalar("<I")
    if not 0 < dimensions <= _MOST_DIMENSIONS:
        msg = f"{cursor.name}: tensor {name!r} has {dimensions} dimensions"
        raise CorruptModelError(msg)
    shape = tuple(cursor.scalar("<Q") for _ in range(dimensions))
    return name, shape[::-1], cursor.scalar("<I"), cursor.scalar("<Q")


def _tensor_kind(name: str, number: int) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(number)
    except ValueError as error:
        msg = f"tensor {name!r} has the unknown quantization type {number}"
        raise UnsupportedModelError(msg) from error


def _byte_size(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block:
        msg = f"tensor {name!r} of shape {shape} does not fill blocks of {block}"
        raise CorruptModelError(msg)
    return math.prod(shape) // int(block) * int(block_bytes)


def _dequantized(raw: np.ndarray[Any, Any], tensor: GgufTensor) -> np.ndarray[Any, Any]:
    try:
        values: np.ndarray[Any, Any] = gguf.dequantize(raw, tensor.kind)
    except NotImplementedError as error:
        msg = f"quantization type {tensor.kind.name} (tensor {tensor.name!r}) is not supported"
        raise UnsupportedModelError(msg) from error
    return values


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
