"""Aborts in every phase, and passes that fail: what is free, what is told, who goes on."""

from __future__ import annotations

from collections.abc import Sequence as Items

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inference.engine.batch import Batch, RawLogprobs, Sampled
from inference.engine.engine import Engine, SequenceEnd
from inference.engine.sequence import SequenceId
from inference.generation import FinishReason
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.unit.engine.bench import Bench


def abort_one(bench: Bench, seq_id: SequenceId = 1) -> SequenceEnd:
    """Abort it and check that this took no pass and left nothing."""
    passes = len(bench.runner.batches)
    (end,) = bench.engine.abort([seq_id])
    bench.engine.check_integrity()
    assert len(bench.runner.batches) == passes
    assert bench.engine.abort([seq_id]) == []
    return end


def ran_after(bench: Bench, passes: int) -> set[SequenceId]:
    return {c.sequence.seq_id for batch in bench.runner.batches[passes:] for c in batch.chunks}


def test_an_abort_before_any_step_ends_it_without_a_pass() -> None:
    bench = Bench("abc")
    bench.add(1)
    end = abort_one(bench)
    assert (end.token_ids, end.text, end.was_scheduled) == ([], "", False)
    assert bench.engine.load() == bench.baseline
    bench.finish()
    assert bench.runner.batches == []


def test_an_abort_of_waiting_ones_keeps_the_order_of_the_rest() -> None:
    bench = Bench("abc", max_running=1)
    for seq_id in range(1, 7):
        bench.add(seq_id, max_tokens=2)
    bench.step()
    ends = bench.engine.abort([3, 6])
    assert [end.seq_id for end in ends] == [3, 6]
    bench.finish()
    order = [seq_id for seq_id, heard in bench.heard.items() if heard.finish]
    assert order == [1, 2, 4, 5]


def test_an_abort_amid_a_chunked_prefill_gives_no_tokens_and_shares_no_unfinished_block() -> None:
    bench = Bench("abc", step_tokens=6)
    prompt = "a prompt of some length"
    bench.add(1, prompt)
    bench.step()
    end = abort_one(bench)
    assert (end.token_ids, end.was_scheduled) == ([], True)
    assert bench.engine.load() == bench.baseline
    bench.add(2, prompt, max_tokens=2)
    bench.finish()
    assert bench.of(2).cached == 4  # only the one block that was full and committed


def test_an_abort_while_decoding_gives_all_tokens_and_the_text_not_sent_yet() -> None:
    bench = Bench("xyEN", max_model_len=64)
    bench.add(1, stop=("END",), logprobs=1)
    for _ in range(4):
        bench.step()
    end = abort_one(bench)
    heard = bench.of(1)
    assert end.token_ids == heard.token_ids == list(b"xyEN")
    assert (end.text, heard.text, end.unsent_text) == ("xyEN", "xy", "EN")
    assert end.logprobs == heard.logprobs
    assert len(end.logprobs) == 4


def test_an_abort_amid_a_character_tells_of_every_byte() -> None:
    bench = Bench("a👋")
    bench.add(1)
    for _ in range(3):
        bench.step()
    end = abort_one(bench)
    assert end.text == "a\ufffd" == ByteTokenizer().decode(end.token_ids)


def test_an_abort_of_a_preempted_one_gives_what_it_had() -> None:
    bench = Bench(kv_tokens=24, max_running=2)
    for seq_id in (1, 2):
        bench.add(seq_id, f"prompt {seq_id}", max_tokens=12)
    while "preempted" not in bench.of(2).marks:
        bench.step()
    end = abort_one(bench, 2)
    assert end.token_ids == bench.of(2).token_ids != []
    assert end.preemptions == 1
    passes = len(bench.runner.batches)
    bench.finish()
    assert ran_after(bench, passes) == {1}


def test_an_abort_of_the_whole_batch_leaves_an_idle_engine() -> None:
    bench = Bench("abc", step_tokens=8)
    for seq_id in range(8):
        bench.add(seq_id, "some prompt")
    for _ in range(3):
        bench.step()
    ends = bench.engine.abort(range(8))
    assert len(ends) == 8
    assert bench.engine.load() == bench.baseline
    bench.engine.check_integrity()
    assert not bench.engine.has_work


def test_unknown_ended_and_repeated_ids_are_passed_over() -> None:
    bench = Bench("abc")
    bench.run(max_tokens=1)
    bench.add(2)
    assert [end.seq_id for end in bench.engine.abort([1, 2, 2, 99])] == [2]


def test_prompt_logprobs_that_were_told_are_in_the_end_too() -> None:
    bench = Bench("abc")
    bench.add(1, "hey", prompt_logprobs=0)
    bench.step()
    assert abort_one(bench).prompt_logprobs == bench.of(1).prompt_logprobs != None  # noqa: E711


def test_prompt_and_partial_output_resubmitted_give_the_unbroken_run() -> None:
    unbroken = Bench().run("once upon", max_tokens=30).token_ids
    bench = Bench()
    bench.add(1, "once upon", max_tokens=30)
    for _ in range(10):
        bench.step()
    partial = abort_one(bench).token_ids
    again = "once upon" + bytes(partial).decode()
    bench.add(2, again, max_tokens=30 - len(partial))
    bench.finish()
    assert partial + bench.of(2).token_ids == unbroken


def test_a_pass_that_fails_ends_its_batch_only() -> None:
    bench = Bench("abEN", max_running=2)
    for seq_id in (1, 2, 3):
        bench.add(seq_id, max_tokens=8, stop=("END",))
    for _ in range(4):
        bench.step()
    bench.runner.fail_next = RuntimeError("secret path /x")
    bench.step()
    for seq_id in (1, 2):
        heard = bench.of(seq_id)
        assert heard.finish is FinishReason.ERROR
        assert (heard.text, len(heard.token_ids)) == ("abEN", 4)
        assert heard.error is not None
        assert "secret" not in heard.error
    bench.finish()
    assert bench.of(3).finish is FinishReason.LENGTH


def test_what_a_failed_pass_wrote_is_never_shared() -> None:
    bench = Bench("abc")
    prompt = "a prompt of some length"
    bench.add(1, prompt)
    bench.runner.fail_next = RuntimeError()
    bench.step()
    assert bench.of(1).marks == ["first_scheduled"]
    bench.add(2, prompt, max_tokens=2)
    bench.finish()
    assert (bench.of(2).cached, bench.of(2).finish) == (0, FinishReason.LENGTH)


@pytest.mark.parametrize("answer", [Sampled([], []), Sampled([1, 2], [None, None])])
def test_an_answer_of_the_wrong_size_is_a_failed_pass(
    answer: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench("abc")
    bench.add(1)
    monkeypatch.setattr(bench.runner, "run", lambda batch: answer)
    bench.step()
    assert bench.of(1).finish is FinishReason.ERROR
    assert bench.engine.load() == bench.baseline


def test_prompt_logprobs_that_are_missing_are_a_failed_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("abc")
    bench.add(1, prompt_logprobs=0)

    def run(batch: Batch) -> Sampled:
        return Sampled([1], [None], {1: [RawLogprobs(1, -1.0)]})

    monkeypatch.setattr(bench.runner, "run", run)
    bench.step()
    assert bench.of(1).finish is FinishReason.ERROR


def test_a_text_that_cannot_be_made_ends_that_sequence_only() -> None:
    class Choking(ByteTokenizer):
        def decode(self, ids: Items[int], *, skip_special_tokens: bool = True) -> str:
            if ord("!") in ids:
                raise ValueError("no such text")
            return super().decode(ids, skip_special_tokens=skip_special_tokens)

    bench = Bench()
    bench.runner._choose = lambda sequence: ord("!" if sequence.seq_id == 1 else "x")
    bench.engine = Engine(bench.config, bench.runner, Choking())
    for seq_id in (1, 2):
        bench.add(seq_id, max_tokens=3)
    bench.finish()
    assert (bench.of(1).finish, bench.of(1).token_ids) == (FinishReason.ERROR, [ord("!")])
    assert (bench.of(2).finish, bench.of(2).text) == (FinishReason.LENGTH, "xxx")


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(0, 20), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(actions, st.integers(12, 24), st.integers(1, 4), st.integers(0, 10))
@settings(max_examples=80, deadline=None)
def test_any_history_gives_each_sequence_one_end_and_its_own_tokens(
    history: list[tuple[str, int, int, int]], blocks: int, slots: int, extra: int
) -> None:
    bench = Bench(kv_tokens=blocks * 4, max_running=slots, step_tokens=slots + extra)
    ended, failing, prompts = set[int](), False, list[tuple[str, int]]()
    for what, first, second, priority in history:
        if what == "add" and first + second <= blocks * 4:
            prompts.append(("ab" * first, second))
            prompt = ("ab" * first)[:first]
            bench.add(len(prompts), prompt, max_tokens=second, priority=priority)
        elif what == "step":
            for _ in range(first):
                bench.step()
        elif what == "abort":
            ended |= {end.seq_id for end in bench.engine.abort([first])}
            bench.engine.check_integrity()
        elif what == "fail":
            bench.runner.fail_next, failing = RuntimeError("drawn"), True
    bench.finish()
    for seq_id, (_, asked) in enumerate(prompts, start=1):
        heard = bench.of(seq_id)
        assert (heard.finish is not None) != (seq_id in ended)
        assert heard.text == bytes(heard.token_ids).decode()
        assert failing or seq_id in ended or len(heard.token_ids) == asked
