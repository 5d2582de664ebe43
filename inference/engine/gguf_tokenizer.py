"""Builds a tokenizer from the vocabulary inside a GGUF file.

Byte-level vocabularies (GPT-2's kind, which all current families use) are built here in a tenth
of a second; transformers' own conversion reads the whole file again and takes seconds, so it
serves only the older SentencePiece kind. How text is split before merging is told by a name in
the file; an unknown name is refused, since guessing would give other tokens than the model knows.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as splits
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inference.engine.models.errors import CorruptModelError, UnsupportedModelError
from inference.engine.models.fields import Fields
from inference.engine.models.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS_AND_SPACES}"
_TEKKEN = (
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BY_REGEX = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3", "tekken"}
_NFC = {"qwen2", "deepseek-r1-qwen"}
_MARKS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def gguf_tokenizer(file: GgufFile) -> Any:
    """A transformers tokenizer, with the file's chat template.

    Raises `UnsupportedModelError` for kinds that cannot be rebuilt, `CorruptModelError` for a
    vocabulary that does not hold together.
    """
    fields = Fields(file.metadata, file.path.name)
    kind = fields.text("tokenizer.ggml.model")
    if kind == "llama":
        return _sentencepiece(file)
    if kind != "gpt2":
        msg = f"{file.path.name}: tokenizers of kind {kind!r} are not supported"
        raise UnsupportedModelError(msg)
    return _byte_level(fields)


def _sentencepiece(file: GgufFile) -> Any:
    folder = str(file.path.parent)
    try:
        return AutoTokenizer.from_pretrained(
            folder, gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged vocabulary may raise anything at all
        msg = f"{file.path.name}: the tokenizer cannot be built: {error}"
        raise CorruptModelError(msg) from error


def _byte_level(fields: Fields) -> Any:
    tokens = fields.texts("tokenizer.ggml.tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        msg = f"{fields.origin}: the vocabulary is empty or names a token twice"
        raise CorruptModelError(msg)
    name = fields.text("tokenizer.ggml.pre", "unnamed")
    backend = _backend(fields, tokens, whole_words=name in _WHOLE_WORDS_FIRST)
    backend.pre_tokenizer = _splitter(name)
    backend.decoder = decoders.ByteLevel()
    if name in _NFC:
        backend.normalizer = normalizers.NFC()
    backend.add_tokens(_added(fields, tokens))
    _add_marks(backend, fields, tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=fields.text_or_none("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **_marks(fields, tokens),
    )


def _backend(fields: Fields, tokens: list[str], *, whole_words: bool) -> Tokenizer:
    pairs = [merge.split(" ", 1) for merge in fields.texts("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        merges = [(left, right) for left, right in pairs]
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    except Exception as error:  # the library raises bare Exception for merges it cannot place
        msg = f"{fields.origin}: the merges do not fit the vocabulary: {error}"
        raise CorruptModelError(msg) from error


def _splitter(name: str) -> Any:
    if name in ("gpt-2", "gpt2"):
        return splits.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        digits = splits.Digits(individual_digits=True)
        return splits.Sequence([digits, splits.ByteLevel(add_prefix_space=False, use_regex=True)])
    if name not in _BY_REGEX:
        msg = f"the tokenizer's way to split text, {name!r}, is not supported"
        raise UnsupportedModelError(msg)
    split = splits.Split(Regex(_BY_REGEX[name]), behavior="isolated")
    return splits.Sequence([split, splits.ByteLevel(add_prefix_space=False, use_regex=False)])


def _added(fields: Fields, tokens: list[str]) -> list[AddedToken]:
    """The tokens that are found in text whole, before it is split."""
    kinds = fields.items("tokenizer.ggml.token_type")
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _marks(fields: Fields, tokens: list[str]) -> dict[str, str]:
    found = {}
    for key, name in _MARKS.items():
        number = fields.integer(f"tokenizer.ggml.{key}_token_id", -1)
        if 0 <= number < len(tokens):
            found[name] = tokens[number]
    return found


def _add_marks(backend: Tokenizer, fields: Fields, tokens: list[str]) -> None:
    """Begin or end every text with the marks that the file asks for."""
    marks = _marks(fields, tokens)
    first = (
        marks.get("bos_token")
        if fields.flag("tokenizer.ggml.add_bos_token", default=False)
        else None
    )
    last = (
        marks.get("eos_token")
        if fields.flag("tokenizer.ggml.add_eos_token", default=False)
        else None
    )
    if first is None and last is None:
        return
    around = [token for token in (first, "$A", last) if token is not None]
    specials = [(mark, backend.token_to_id(mark)) for mark in {first, last} if mark is not None]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=specials)
