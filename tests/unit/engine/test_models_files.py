"""Model folders: what is refused, and what the refusal says."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from inference.engine.config import EngineConfig
from inference.engine.loading import chosen_device, chosen_dtype, fitted, load_engine_parts
from inference.engine.models.errors import CorruptModelError, ModelError, UnsupportedModelError
from inference.engine.models.files import open_model
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.tiny_llama import write_tiny_llama
from tests.unit.engine.model_bench import runner_of

_QUIETLY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return write_tiny_llama(tmp_path / "model")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder: Path) -> None:
    runner_of(folder, kv_tokens=64, max_running=1)


def test_it_loads_a_folder_whole(folder: Path) -> None:
    config = EngineConfig(kv_tokens=256)
    model, runner, tokenizer = load_engine_parts(
        folder, config=config, dtype="float32", device="cpu", threads=1
    )
    assert (model.vocab_size, runner.vocab_size, tokenizer.vocab_size) == (260, 260, 260)
    assert tokenizer.eos_ids == ByteTokenizer.eos_ids
    assert tokenizer.encode("héllo") == ByteTokenizer().encode("héllo")
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == ByteTokenizer().render_chat(messages)


def test_the_context_is_no_longer_than_the_model_s(folder: Path) -> None:
    change_config(folder, max_position_embeddings=128)
    model = open_model(folder).config
    assert fitted(EngineConfig(max_model_len=2048), model).max_model_len == 128
    assert fitted(EngineConfig(max_model_len=100), model).max_model_len == 100


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
    ],
)
def test_what_the_engine_does_not_run_is_named(
    folder: Path, changes: dict[str, Any], word: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(UnsupportedModelError, match=word):
        open_model(folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": None}, "architecture"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "key-value heads"),
        ({"rms_norm_eps": -1.0}, "epsilon"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"head_dim": 15}, "head size"),
        ({"vocab_size": -5}, "vocab_size"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 0}}, "beta"),
    ],
)
def test_a_senseless_configuration_is_refused(
    folder: Path, changes: dict[str, Any], word: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(CorruptModelError, match=word):
        open_model(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_configuration_that_is_no_json_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CorruptModelError, match=r"config\.json"):
        open_model(folder)


@pytest.mark.parametrize(
    "changes",
    [{"intermediate_size": 96}, {"head_dim": 8}, {"vocab_size": 300}, {"head_dim": 1 << 24}],
)
def test_weights_that_do_not_fit_are_named(folder: Path, changes: dict[str, Any]) -> None:
    change_config(folder, **changes)
    with pytest.raises(CorruptModelError, match=r"tensor 'model\."):
        load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CorruptModelError, match="up_proj"):
        load(folder)


def test_values_that_are_not_finite_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CorruptModelError, match="not finite"):
        load(folder)


def test_a_type_that_is_no_float_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="int8"):
        load(folder)


def test_weights_that_can_carry_code_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        open_model(folder)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "model.bin", "a/b.safetensors"]
)
def test_an_index_may_name_files_of_its_folder_only(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "other.safetensors").write_bytes(b"")
    with pytest.raises(CorruptModelError, match="no file of this folder"):
        open_model(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "shard-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptModelError, match=r"shard-2\.safetensors"):
        open_model(folder)


def test_a_header_longer_than_the_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(CorruptModelError, match="damaged"):
        open_model(folder)


@_QUIETLY
@given(share=st.floats(0.0, 0.9999))
def test_weights_cut_anywhere_are_refused(folder: Path, tiny_llama: Path, share: float) -> None:
    content = (tiny_llama / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError):
        load(folder)


@_QUIETLY
@given(data=st.data())
def test_a_damaged_header_gives_a_model_or_a_clear_error(
    folder: Path, tiny_llama: Path, data: st.DataObject
) -> None:
    content = (tiny_llama / "model.safetensors").read_bytes()
    place = data.draw(st.integers(0, 2_500))
    junk = data.draw(st.binary(min_size=1, max_size=4))
    damaged = content[:place] + junk + content[place + len(junk) :]
    (folder / "model.safetensors").write_bytes(damaged)
    with contextlib.suppress(ModelError):
        load(folder)


def test_no_model_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match="there is no model"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(CorruptModelError, match="one model is needed"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", "what ever"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="device"):
        chosen_device(name)


def test_a_type_that_is_not_supported_is_refused() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="float16"):
        chosen_dtype("float16", cpu)
    assert chosen_dtype("auto", cpu) in (torch.bfloat16, torch.float32)
