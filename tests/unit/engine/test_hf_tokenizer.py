"""Tokenizers and chat templates, from GGUF files and from folders."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest

from inference.engine.hf_tokenizer import HfTokenizer, load_tokenizer
from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.files import open_model
from inference.errors import InvalidRequestError
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.tiny_gguf import write_tiny_gguf
from tests.doubles.tiny_llama import write_tiny_llama

_TEXTS = [
    "",
    "hello",
    "Grüße, Ælfrēd",
    "日本語のテキスト",
    "👩‍👩‍👧 🏳️‍🌈",
    "a\n\n\tb  c\r\n",
    "\x00\x7f",
]
_SMOLLM_DEFAULT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module", params=["folder", "gguf"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    path = tmp_path_factory.mktemp(request.param) / "model"
    if request.param == "folder":
        return load_tokenizer(open_model(write_tiny_llama(path)))
    write_tiny_gguf(path)
    return load_tokenizer(open_model(path))


@pytest.fixture(scope="module")
def smollm(real_model: Path) -> HfTokenizer:
    return load_tokenizer(open_model(real_model))


@pytest.mark.parametrize("text", _TEXTS)
def test_a_byte_vocabulary_gives_bytes(tiny: HfTokenizer, text: str) -> None:
    ids = tiny.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert tiny.decode(ids) == text


def test_special_tokens_are_known_and_left_out(tiny: HfTokenizer) -> None:
    assert tiny.special_ids == ByteTokenizer.special_ids
    assert tiny.encode("a<turn>b", add_special_tokens=False) == [97, 258, 98]
    assert tiny.decode([97, 258, 98]) == "ab"
    assert tiny.decode([97, 258, 98], skip_special_tokens=False) == "a<turn>b"
    assert [tiny.token_text(token) for token in (97, 257, 255)] == ["a", "<eos>", "\ufffd"]


def test_lone_surrogates_do_no_harm(tiny: HfTokenizer) -> None:
    assert tiny.encode("a\ud800b", add_special_tokens=False) == list(b"a?b")


def test_many_threads_may_use_it_at_once(tiny: HfTokenizer) -> None:
    texts = [f"{number} {_TEXTS[number % 7]}" * 20 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda t: tiny.encode(t, add_special_tokens=False), texts))
    assert found == [list(text.encode()) for text in texts]


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_marks_that_the_file_asks_for_are_added(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=lambda writer: writer.add_add_bos_token(value=True))
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    assert tokenizer.encode("hi") == [256, *b"hi"]
    assert tokenizer.encode("hi", add_special_tokens=False) == [*b"hi"]


def test_a_way_to_split_that_is_unknown_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=_set("tokenizer.ggml.pre", "klingon"))
    with pytest.raises(UnsupportedModelError, match="klingon"):
        load_tokenizer(open_model(tmp_path / "m.gguf"))


def test_a_kind_that_is_unknown_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=_set("tokenizer.ggml.model", "rwkv"))
    with pytest.raises(UnsupportedModelError, match="rwkv"):
        load_tokenizer(open_model(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.merges", ["no such", "tokens here"]),
        ("tokenizer.ggml.merges", ["one"]),
        ("tokenizer.ggml.tokens", ["a", "a"]),
    ],
)
def test_a_vocabulary_that_does_not_hold_together_is_refused(
    tmp_path: Path, key: str, value: Any
) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=_set(key, value))
    with pytest.raises(CorruptModelError):
        load_tokenizer(open_model(tmp_path / "m.gguf"))


def test_the_older_kind_of_vocabulary_is_read_too(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", change=_sentencepiece)
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    assert tokenizer.encode("hi hi") == [1, 263, 263]
    for text in ("hi hi", "é ü", "日本"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "BPE"}}'])
def test_a_folder_with_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CorruptModelError, match="tokenizer"):
        load_tokenizer(open_model(folder))


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with contextlib.suppress(CorruptModelError):
        load_tokenizer(open_model(folder))
    assert not (tmp_path / "ran").exists()


def test_smollm_s_template_begins_with_its_own_system_prompt(smollm: HfTokenizer) -> None:
    ids = smollm.render_chat([{"role": "user", "content": "What is 1234?"}])
    assert smollm.decode(ids, skip_special_tokens=False) == (
        f"<|im_start|>system\n{_SMOLLM_DEFAULT}<|im_end|>\n"
        "<|im_start|>user\nWhat is 1234?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)


def test_smollm_s_template_takes_a_system_prompt_and_parts(smollm: HfTokenizer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    text = smollm.decode(smollm.render_chat(messages), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ["hello"],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    ],
)
def test_messages_that_a_template_cannot_take_are_the_client_s_error(
    smollm: HfTokenizer, messages: list[Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        smollm.render_chat(messages)
    assert caught.value.param == "messages"


def test_smollm_s_vocabulary_is_read_right(smollm: HfTokenizer) -> None:
    assert (smollm.vocab_size, smollm.eos_ids) == (49152, {2})
    assert smollm.special_ids == set(range(17))
    assert smollm.token_text(2) == "<|im_end|>"
    assert len(smollm.encode("12345")) == 5  # each digit is a token of its own
    for text in _TEXTS:
        assert smollm.decode(smollm.encode(text)) == text


def _sentencepiece(writer: gguf.GGUFWriter) -> None:
    metadata = writer.kv_data[0]
    for key in [key for key in metadata if key.startswith("tokenizer.")]:
        del metadata[key]
    marks, letters = ["<unk>", "<s>", "</s>"], ["▁", "h", "i", "▁h", "▁hi"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*marks, *(f"<0x{byte:02X}>" for byte in range(256)), *letters])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 5)
    writer.add_token_scores([0.0] * 259 + [-1.0, -2.0, -3.0, -0.5, -0.2])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(value=True)


def _set(key: str, value: Any) -> Any:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)

    return change
