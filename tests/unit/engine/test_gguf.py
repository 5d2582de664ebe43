"""GGUF files: the same model as the folder that they were made from, and nothing worse."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.models.config import RopeKind
from inference.engine.models.errors import CorruptModelError, ModelError, UnsupportedModelError
from inference.engine.models.files import open_model
from inference.engine.models.gguf_file import GgufFile
from tests.doubles.tiny_gguf import Kind, write_tiny_gguf
from tests.unit.engine.model_bench import logits_of, runner_of

_PROMPT = [256, *b"a prompt that is long enough for more than one block of the cache"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "kind",
    [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1],
    ids=lambda kind: kind.name,
)
def test_it_reads_the_weights_that_were_written(tmp_path: Path, kind: Kind) -> None:
    rounded = write_tiny_gguf(tmp_path / "m.gguf", kind=kind)
    weights = open_model(tmp_path / "m.gguf").weights
    for name, expected in rounded.items():
        assert torch.equal(weights.tensor(name), expected), name


def test_it_gives_the_logits_of_the_same_weights_in_safetensors(
    tmp_path: Path, tiny_llama: Path
) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    ours = logits_of(open_model(tmp_path / "m.gguf"), _PROMPT)
    assert torch.allclose(ours, logits_of(open_model(tiny_llama), _PROMPT), atol=1e-4)


def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    assert open_model(tmp_path).config.eos_ids == {257}
    write_tiny_gguf(tmp_path / "n.gguf")
    with pytest.raises(CorruptModelError, match="2 GGUF files"):
        open_model(tmp_path)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q4_K, Kind.Q6_K, Kind.IQ4_XS], ids=str)
def test_it_reads_block_types_that_only_llama_cpp_writes(tmp_path: Path, kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    raw = torch.randint(0, 60, (3, 2 * size), dtype=torch.uint8).numpy()
    writer.add_tensor("w", raw, raw_dtype=kind)
    _finish(writer)
    file = GgufFile(tmp_path / "m.gguf")
    assert file.tensors["w"].shape == (3, 2 * block)
    assert (file.dequantized("w") == gguf.dequantize(raw, kind)).all()


def test_a_quantization_type_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    raw = torch.zeros(2, 292, dtype=torch.uint8).numpy()
    writer.add_tensor("w", raw, raw_dtype=Kind.Q8_K)
    _finish(writer)
    with pytest.raises(UnsupportedModelError, match="Q8_K"):
        GgufFile(tmp_path / "m.gguf").dequantized("w")


def test_another_architecture_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", architecture="mamba")
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        open_model(tmp_path / "m.gguf")


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=lambda writer: writer.add_expert_count(8))
    with pytest.raises(UnsupportedModelError, match="experts"):
        open_model(tmp_path / "m.gguf")


def test_rotary_scaling_is_read(tmp_path: Path) -> None:
    def scale(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(1024)

    write_tiny_gguf(tmp_path / "m.gguf", change=scale)
    rope = open_model(tmp_path / "m.gguf").config.rope
    assert (rope.kind, rope.factor, rope.original_max_position) == (RopeKind.YARN, 4.0, 1024)


def test_rotary_divisors_in_the_file_are_used(tmp_path: Path) -> None:
    divisors = torch.full((8,), 2.0).numpy()
    write_tiny_gguf(
        tmp_path / "m.gguf", change=lambda writer: writer.add_tensor("rope_freqs.weight", divisors)
    )
    write_tiny_gguf(tmp_path / "n.gguf", change=_halve_frequencies)
    files = open_model(tmp_path / "m.gguf")
    assert files.config.rope.frequency_divisors == (2.0,) * 8
    other = logits_of(open_model(tmp_path / "n.gguf"), _PROMPT)
    assert torch.allclose(logits_of(files, _PROMPT), other, atol=1e-4)


def test_a_missing_value_or_tensor_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.zeros(4, 8).numpy())
    _finish(writer)
    with pytest.raises(CorruptModelError, match="head_count"):
        open_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 1 << 31),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
    ],
)
def test_senseless_sizes_are_refused(tmp_path: Path, key: str, value: int) -> None:
    def change(writer: Any) -> None:
        writer.kv_data[0][key] = gguf.GGUFValue(value, gguf.GGUFValueType.UINT32)

    write_tiny_gguf(tmp_path / "m.gguf", change=change)
    with pytest.raises(CorruptModelError):
        open_model(tmp_path / "m.gguf")


def test_weights_that_do_not_fit_the_configuration_are_named(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.kv_data[0]["llama.feed_forward_length"].value = 96

    write_tiny_gguf(tmp_path / "m.gguf", change=change)
    with pytest.raises(CorruptModelError, match="gate_proj"):
        runner_of(tmp_path / "m.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all", b"GGUF" + b"\xff" * 40])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError):
        open_model(tmp_path / "m.gguf")


def test_counts_larger_than_the_file_are_refused_at_once(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    huge = struct.pack("<IIQ", 9, 8, 1 << 62)
    (tmp_path / "m.gguf").write_bytes(head + huge)
    with pytest.raises(CorruptModelError, match="cut short"):
        open_model(tmp_path / "m.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_tiny_gguf(path, kind=Kind.Q8_0)
    return path


_QUIETLY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_QUIETLY
@given(share=st.floats(0.0, 0.999))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, whole: Path, share: float) -> None:
    content = whole.read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError):
        open_model(tmp_path / "m.gguf")


@_QUIETLY
@given(data=st.data())
def test_a_damaged_header_gives_a_model_or_a_clear_error(
    tmp_path: Path, whole: Path, data: st.DataObject
) -> None:
    place = data.draw(st.integers(4, 9_000))
    junk = data.draw(st.binary(min_size=1, max_size=8))
    content = whole.read_bytes()
    damaged = content[:place] + junk + content[place + len(junk) :]
    (tmp_path / "m.gguf").write_bytes(damaged)
    with contextlib.suppress(ModelError):
        runner_of(tmp_path / "m.gguf", kv_tokens=64, max_running=1)


def _halve_frequencies(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(2.0)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
