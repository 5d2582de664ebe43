"""Streamed text equals decoded text, for every script, and no stop string leaks."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from inference.engine.detokenizer import Detokenizer, StopWatch
from tests.doubles.byte_tokenizer import BOS, EOS, TURN_START, ByteTokenizer

SCRIPTS = [
    "plain ascii, with  spaces\n\tand tabs",
    "Grüße, naïve café",
    "Привет, мир",
    "你好，世界。こんにちは。안녕하세요",  # noqa: RUF001 - the comma of that script
    "مرحبا بالعالم שלום עולם",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "👋🏽👨‍👩‍👧‍👦🇩🇪🏳️‍🌈 emoji",
    "e\u0301 combining \u200b zero width \U00010348 gothic",
    "a real \ufffd replacement mark",
]

tokens = st.integers(0, 259)


class MergingTokenizer(ByteTokenizer):
    """Tokens above the bytes are pieces of text that begin or end inside of a character."""

    def __init__(self, text: str | bytes, width: int) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self._pieces = [raw[at : at + width] for at in range(0, len(raw), width)]

    @property
    def ids(self) -> list[int]:
        return [1000 + number for number in range(len(self._pieces))]

    def decode(self, ids: object, *, skip_special_tokens: bool = True) -> str:
        return b"".join(
            self._pieces[token_id - 1000]
            for token_id in ids  # type: ignore[attr-defined]
        ).decode(errors="replace")


class StrippingTokenizer(ByteTokenizer):
    """Drops one space at the start of a text, as SentencePiece's decoders do."""

    def decode(self, ids: object, *, skip_special_tokens: bool = True) -> str:
        return super().decode(ids).removeprefix(" ")  # type: ignore[arg-type]


def streamed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()]


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The plain meaning of stop strings: read on until one is complete, the longest if several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("text", SCRIPTS)
def test_byte_by_byte_it_gives_whole_characters(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = streamed(Detokenizer(tokenizer), ids)
    assert "".join(pieces) == text
    assert text.count("\ufffd") == sum(piece.count("\ufffd") for piece in pieces)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("text", SCRIPTS)
def test_tokens_that_cut_characters_give_the_same_text(text: str, width: int) -> None:
    tokenizer = MergingTokenizer(text, width)
    assert "".join(streamed(Detokenizer(tokenizer), tokenizer.ids)) == text


def test_a_character_comes_with_its_last_byte_and_not_later() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert [detokenizer.push([byte]) for byte in "é!".encode()] == ["", "é", "!"]


def test_text_before_an_unfinished_character_is_not_kept_waiting() -> None:
    tokenizer = MergingTokenizer("abé", 3)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in tokenizer.ids] == ["ab", "é"]


@given(st.lists(tokens, max_size=80), st.data())
def test_any_ids_in_any_portions_give_the_text_of_all(ids: list[int], data: st.DataObject) -> None:
    tokenizer, detokenizer = ByteTokenizer(), Detokenizer(ByteTokenizer())
    pieces, rest = [], list(ids)
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        pieces.append(detokenizer.push(rest[:count]))
        rest = rest[count:]
    assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode(ids)


@given(st.lists(st.sampled_from([0xFF, 0x80, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x61]), max_size=120))
@example([0xFF] * 120)
@example([0xE4, 0xBD] * 60)
@example([0xF0, 0x9F, 0x98] * 40)
def test_broken_bytes_give_the_text_of_all(ids: list[int]) -> None:
    assert "".join(streamed(Detokenizer(ByteTokenizer()), ids)) == ByteTokenizer().decode(ids)


def test_endless_broken_bytes_are_let_out_and_do_not_pile_up() -> None:
    longest = 0

    class Counting(ByteTokenizer):
        def decode(self, ids: object, *, skip_special_tokens: bool = True) -> str:
            nonlocal longest
            longest = max(longest, len(ids))  # type: ignore[arg-type]
            return super().decode(ids)  # type: ignore[arg-type]

    detokenizer = Detokenizer(Counting())
    text = "".join(detokenizer.push([0xFF]) for _ in range(2000))
    assert len(text) > 1900
    assert longest < 60


@pytest.mark.parametrize("lead", range(20))
def test_text_amid_broken_bytes_is_shown_once(lead: int) -> None:
    raw = b"\xff" * 2 * lead + b"x\xff" + b"\xff" * 30
    tokenizer = MergingTokenizer(raw, 2)
    pieces = streamed(Detokenizer(tokenizer), tokenizer.ids)
    assert "".join(pieces) == raw.decode(errors="replace")


def test_special_tokens_are_no_text_and_do_not_pile_up() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    ids = [BOS, *b"a", *[EOS] * 500, TURN_START, *"é".encode()[:1], BOS, *"é".encode()[1:]]
    assert "".join(streamed(detokenizer, ids)) == "aé"


def test_a_decoder_that_strips_the_first_space_loses_no_other() -> None:
    ids = list(b"  two  spaces ")
    detokenizer = Detokenizer(StrippingTokenizer())
    assert "".join(streamed(detokenizer, ids)) == " two  spaces "


@given(
    st.text(alphabet="abé👋", max_size=40),
    st.lists(st.text(alphabet="abé👋", min_size=1, max_size=5), max_size=4),
    st.integers(1, 5),
)
@settings(max_examples=300)
@example("xab", ["abcd", "b"], 3)
@example("abcd", ["abcd", "c"], 4)
def test_a_stop_string_cuts_where_it_is_first_complete(
    text: str, stops: list[str], width: int
) -> None:
    tokenizer = MergingTokenizer(text, width)
    detokenizer = Detokenizer(tokenizer, tuple(stops))
    shown, stopped_at = "", None
    expected, stop = first_stop(text, stops)
    for at, token_id in enumerate(tokenizer.ids):
        shown += detokenizer.push([token_id])
        assert expected.startswith(shown), "a part of a stop string leaked"
        if detokenizer.stopped_by is not None:
            stopped_at = at
            break
    shown += detokenizer.flush()
    assert (shown, detokenizer.stopped_by) == (expected, stop)
    if stop is not None:
        assert stopped_at == (len((expected + stop).encode()) - 1) // width


def test_what_only_looked_like_a_stop_string_comes_after_all() -> None:
    watch = StopWatch(["END"])
    assert [watch.push(piece) for piece in ["a E", "N", "x", "EN"]] == ["a ", "", "ENx", ""]
    assert watch.flush() == "EN"


def test_nothing_comes_after_a_stop_string() -> None:
    watch = StopWatch(["##"])
    assert watch.push("a##b") == "a"
    assert (watch.push("c"), watch.flush(), watch.stopped_by) == ("", "", "##")


def test_a_stop_string_that_ended_while_it_might_not_is_past() -> None:
    watch = StopWatch(["ab", "xaby"])
    assert watch.push("xab", may_stop=False) == ""
    assert watch.push("z") == "xabz"
    assert watch.stopped_by is None


def test_a_stop_string_may_begin_while_it_might_not_end() -> None:
    watch = StopWatch(["abc"])
    assert watch.push("abcab", may_stop=False) == "abc"
    assert watch.push("c") == ""
    assert watch.stopped_by == "abc"
