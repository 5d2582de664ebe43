"""The engine over a fake runner: what is sampled, told, stopped and counted."""

from __future__ import annotations

import pytest

from inference.engine.engine import NewSequence, SequenceUpdate
from inference.errors import ContextLengthExceededError, InvalidRequestError, QueueFullError
from inference.generation import FinishReason, SamplingParams
from tests.doubles.byte_tokenizer import EOS, TURN_END, ByteTokenizer
from tests.unit.engine.bench import Bench


def test_it_streams_what_it_samples_up_to_max_tokens() -> None:
    heard = Bench("abcdef").run(max_tokens=4)
    assert (heard.text, heard.token_ids) == ("abcd", list(b"abcd"))
    assert (heard.finish, heard.stop_reason) == (FinishReason.LENGTH, None)
    assert heard.marks == ["first_scheduled"]


def test_without_max_tokens_it_fills_the_context() -> None:
    heard = Bench("x", max_model_len=20).run("hello")
    assert (len(heard.token_ids), heard.finish) == (15, FinishReason.LENGTH)


def test_without_max_tokens_a_small_cache_is_filled_to_its_last_place() -> None:
    heard = Bench("x", kv_tokens=16, max_running=1).run("hello")
    assert (len(heard.token_ids), heard.finish) == (16 + 1 - 5, FinishReason.LENGTH)


def test_no_tokens_asked_for_give_none() -> None:
    heard = Bench("x").run(max_tokens=0)
    assert (heard.token_ids, heard.text, heard.finish) == ([], "", FinishReason.LENGTH)


def test_no_tokens_but_prompt_logprobs_give_those() -> None:
    heard = Bench("x").run("abc", max_tokens=0, prompt_logprobs=1)
    assert heard.prompt_logprobs is not None
    assert [one and one.sampled.token for one in heard.prompt_logprobs] == [None, "b", "c"]


@pytest.mark.parametrize("end", [EOS, TURN_END])
def test_the_end_token_is_counted_and_is_no_text(end: int) -> None:
    heard = Bench([*b"hi", end, *b"!!"]).run(max_tokens=9, logprobs=0)
    assert (heard.text, heard.token_ids) == ("hi", [*b"hi", end])
    assert (heard.finish, heard.stop_reason) == (FinishReason.STOP, None)
    assert len(heard.logprobs) == 3


def test_ignore_eos_goes_on_past_it() -> None:
    heard = Bench([*b"hi", EOS, *b"!!"]).run(max_tokens=5, ignore_eos=True)
    assert (heard.text, len(heard.token_ids)) == ("hi!!", 5)
    assert heard.finish is FinishReason.LENGTH


def test_a_stop_token_ends_it_with_its_id_even_while_eos_is_ignored() -> None:
    heard = Bench("abc").run(max_tokens=9, stop_token_ids=(ord("b"),), ignore_eos=True)
    assert (heard.text, heard.token_ids) == ("a", list(b"ab"))
    assert (heard.finish, heard.stop_reason) == (FinishReason.STOP, ord("b"))


def test_a_stop_string_is_cut_off_and_its_tokens_are_counted() -> None:
    heard = Bench("one END two").run(max_tokens=11, stop=("END",))
    assert (heard.text, heard.token_ids) == ("one ", list(b"one END"))
    assert (heard.finish, heard.stop_reason) == (FinishReason.STOP, "END")


def test_a_stop_string_at_the_last_token_is_a_stop() -> None:
    heard = Bench("abc").run(max_tokens=3, stop=("bc",))
    assert (heard.text, heard.finish, heard.stop_reason) == ("a", FinishReason.STOP, "bc")


def test_a_stop_string_that_only_the_rest_of_the_text_completes_is_a_stop() -> None:
    heard = Bench("aé").run(max_tokens=2, stop=("\ufffd",))
    assert (heard.text, heard.finish, heard.stop_reason) == ("a", FinishReason.STOP, "\ufffd")


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    heard = Bench("abEN").run(max_tokens=4, stop=("END",))
    assert (heard.text, heard.finish) == ("abEN", FinishReason.LENGTH)


def test_text_held_back_for_a_stop_string_comes_before_an_end_token() -> None:
    heard = Bench([*b"abEN", EOS]).run(max_tokens=9, stop=("END",))
    assert (heard.text, heard.finish, heard.stop_reason) == ("abEN", FinishReason.STOP, None)


def test_before_min_tokens_nothing_stops_it() -> None:
    heard = Bench([*b"ab.", EOS, *b"cd.ef"]).run(
        max_tokens=9, min_tokens=5, stop=(".",), stop_token_ids=(ord("a"),)
    )
    assert (heard.text, heard.token_ids) == ("ab.cd", [*b"ab.", EOS, *b"cd."])
    assert heard.stop_reason == "."


def test_an_unfinished_character_at_the_end_is_marked_as_such() -> None:
    heard = Bench("aé").run(max_tokens=2)
    assert heard.text == "a\ufffd" == ByteTokenizer().decode(heard.token_ids)


def test_each_token_comes_with_its_logprobs() -> None:
    heard = Bench("abc").run(max_tokens=3, logprobs=2)
    assert [entry.sampled.token for entry in heard.logprobs] == ["a", "b", "c"]
    assert [len(entry.top) for entry in heard.logprobs] == [2, 2, 2]
    assert Bench("abc").run(max_tokens=3).logprobs == []


def test_prompt_logprobs_come_once_over_all_chunks_and_despite_the_prefix_cache() -> None:
    bench = Bench("xyz", step_tokens=4)
    prompt = "a longer prompt"
    bench.run(prompt, max_tokens=2)
    bench.add(2, prompt, max_tokens=2, prompt_logprobs=0)
    bench.finish()
    found = bench.of(2).prompt_logprobs
    assert found is not None
    assert "".join(one.sampled.token for one in found if one) == prompt[1:]
    assert bench.of(2).cached == 0


def test_cached_prompt_tokens_are_told_with_the_first_schedule() -> None:
    bench = Bench("xyz")
    bench.run("a longer prompt", max_tokens=2)
    bench.add(2, "a longer prompt", max_tokens=2)
    bench.finish()
    assert bench.of(2).cached == 12
    assert bench.engine.reset_prefix_cache() > 0
    bench.add(3, "a longer prompt", max_tokens=2)
    bench.finish()
    assert (bench.of(3).cached, bench.runner.resets) == (0, 1)


def test_batch_mates_chunks_and_preemptions_change_no_token() -> None:
    alone = {}
    for seq_id in range(6):
        bench = Bench()
        bench.add(seq_id, f"prompt number {seq_id}", max_tokens=12)
        bench.finish()
        alone[seq_id] = bench.of(seq_id).token_ids
    crowd = Bench(kv_tokens=40, step_tokens=7, max_running=3)
    for seq_id in range(6):
        crowd.add(seq_id, f"prompt number {seq_id}", max_tokens=12)
    crowd.finish()
    assert {seq_id: crowd.of(seq_id).token_ids for seq_id in range(6)} == alone
    marks = [mark for heard in crowd.heard.values() for mark in heard.marks]
    assert marks.count("preempted") == marks.count("resumed") > 0
    assert marks.count("first_scheduled") == 6


def test_a_step_tells_its_size_and_an_idle_one_runs_nothing() -> None:
    bench = Bench("abc")
    assert bench.step().num_tokens == 0
    assert bench.runner.batches == []
    bench.add(1, "hello", max_tokens=3)
    first, second = bench.step(), bench.step()
    assert (first.num_tokens, first.num_sequences, first.num_decodes) == (5, 1, 0)
    assert (second.num_tokens, second.num_sequences, second.num_decodes) == (1, 1, 1)
    assert first.seconds >= first.run_seconds >= 0


def test_the_runner_forgets_every_sequence_that_ended() -> None:
    bench = Bench("abc", max_running=1)
    for seq_id in (1, 2):
        bench.add(seq_id, max_tokens=2)
    bench.engine.abort([2])
    bench.finish()
    assert sorted(bench.runner.forgotten) == [1, 2]


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    bench = Bench("abc", max_running=1, max_queued=2)
    bench.engine.add(*(bench.new(seq_id, max_tokens=2) for seq_id in (1, 2, 3)))
    with pytest.raises(QueueFullError) as refusal:
        bench.add(4)
    assert refusal.value.retry_after
    bench.engine.check_integrity()
    bench.finish()
    bench.add(4, max_tokens=1)


def test_several_sequences_come_in_together_or_not_at_all() -> None:
    bench = Bench("abc", max_running=1, max_queued=1)
    with pytest.raises(QueueFullError):
        bench.engine.add(*(bench.new(seq_id) for seq_id in (1, 2, 3)))
    with pytest.raises(ContextLengthExceededError):
        bench.engine.add(bench.new(1), bench.new(2, "x" * 500))
    assert bench.engine.load() == bench.baseline
    assert not bench.engine.has_work


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "sizes"),
    [
        ("x" * 129, None, {}),
        ("x" * 128, None, {}),
        ("x" * 100, 29, {}),
        ("x" * 20, None, {"kv_tokens": 16, "max_running": 1}),
        ("x" * 10, 8, {"kv_tokens": 16, "max_running": 1}),
        ("x" * 17, 0, {"kv_tokens": 16, "max_running": 1}),
    ],
)
def test_what_never_fits_is_refused_before_it_is_queued(
    prompt: str, max_tokens: int | None, sizes: dict[str, int]
) -> None:
    bench = Bench("abc", **sizes)
    with pytest.raises(ContextLengthExceededError, match="at most"):
        bench.add(1, prompt, max_tokens=max_tokens)
    assert not bench.engine.has_work


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "sizes"),
    [
        ("x" * 127, None, {}),
        ("x" * 100, 28, {}),
        ("x" * 16, 1, {"kv_tokens": 16, "max_running": 1}),
        ("x" * 10, 7, {"kv_tokens": 16, "max_running": 1}),
    ],
)
def test_what_just_fits_runs_to_its_end(
    prompt: str, max_tokens: int | None, sizes: dict[str, int]
) -> None:
    bench = Bench("abc", **sizes)
    heard = bench.run(prompt, max_tokens=max_tokens)
    assert heard.finish is FinishReason.LENGTH
    assert len(heard.token_ids) == (max_tokens or 1)


@pytest.mark.parametrize(
    ("ids", "params", "param"),
    [
        ([], {}, "prompt"),
        ([1, 260], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([2**70], {}, "prompt"),
        ([1], {"logit_bias": {260: 1.0}}, "logit_bias"),
        ([1], {"max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_the_model_cannot_read_is_refused(
    ids: list[int], params: dict[str, object], param: str
) -> None:
    bench = Bench("abc")
    new = NewSequence(seq_id=1, prompt_ids=ids, params=SamplingParams(**params))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as refusal:
        bench.engine.add(new)
    assert refusal.value.param == param


def test_an_id_in_use_cannot_be_used_again() -> None:
    bench = Bench("abc")
    bench.add(1)
    with pytest.raises(ValueError, match="already"):
        bench.add(1)
    with pytest.raises(ValueError, match="twice"):
        bench.engine.add(bench.new(2), bench.new(2))
    bench.engine.check_integrity()


def test_updates_are_only_about_sequences_with_news() -> None:
    bench = Bench("abc", step_tokens=4)
    bench.add(1, "a longer prompt", max_tokens=2)
    first, second = bench.step(), bench.step()
    assert first.updates == [SequenceUpdate(seq_id=1, first_scheduled=True)]
    assert second.updates == []
