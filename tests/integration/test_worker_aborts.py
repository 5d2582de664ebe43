"""Aborts in the engine process: every phase, over both transports, with the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from inference.bus.memory import MemoryBus
from inference.bus.socket import SocketBus
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import (
    Abort,
    Aborted,
    Accepted,
    Release,
    ReleaseOutcome,
    RequestKey,
    TextPrompt,
)
from inference.worker.commands import AbortAsked, Tokenized
from tests.doubles.worker_harness import API, Client, Harness, running, submission

A, B, C = (RequestKey(f"req_{name}", 1) for name in "abc")


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="hl-") as name:
        yield Path(name)


@pytest.fixture(params=["memory", "unix"])
async def worker(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Harness]:
    """Two slots."""
    bus = MemoryBus() if request.param == "memory" else SocketBus(f"unix:{folder}/engine.sock")
    async with running(bus, max_running=2) as harness:
        yield harness


@pytest.fixture
async def web(worker: Harness) -> Client:
    return await worker.connect("web")


async def test_it_aborts_while_decoding_with_the_exact_tokens(worker: Harness, web: Client) -> None:
    await web.submitted(submission(A, logprobs=1))
    await web.has_tokens(A, 5)
    assert (await web.abort(A)).releases == [Release(A, ReleaseOutcome.RELEASED)]
    end = await web.end(A)
    assert (end.finish_reason, end.abort) == (FinishReason.ABORT, API)
    event = await worker.event(A)
    last = event.timeline[-1]
    assert last.trigger is Trigger.ABORT_CONFIRM
    assert last.choice_end is not None
    assert last.choice_end.token_ids == web.tokens(A)
    assert last.choice_end.text == web.text(A)
    assert last.choice_end.abort == API
    assert end.usage is not None
    assert event.output_tokens == end.usage.output_tokens == len(web.tokens(A))
    assert sum(len(item.logprobs or ()) for item in web.outputs(A)) == len(web.tokens(A))
    assert len(last.choice_end.logprobs or ()) == len(web.tokens(A))
    assert [entry.seq for entry in event.timeline] == [1, 2]
    await worker.is_clean()


async def test_it_frees_slot_and_blocks_before_it_answers(worker: Harness, web: Client) -> None:
    await web.submitted(submission(A))
    await web.has_tokens(A, 3)
    await web.abort(A)
    status = await web.ask()
    assert (status.running, status.free_blocks) == (0, status.total_blocks)


async def test_it_lets_waiting_work_go_at_once_and_keeps_the_others_order(
    worker: Harness, web: Client
) -> None:
    """Case 15."""
    keys = [RequestKey(f"req_{number}", 1) for number in range(7)]
    worker.runner.hold()
    for key in keys:
        web.send(submission(key, max_tokens=40 if key in keys[:2] else 3))
    await worker.arrived(Tokenized, len(keys))
    worker.runner.let(1)
    await worker.until(lambda: worker.engine.load().waiting == len(keys) - 2)
    await worker.runner.stands()
    web.send(Abort(keys=[keys[3], keys[5]], info=API))
    await worker.arrived(AbortAsked)
    worker.runner.free()
    for key in (keys[3], keys[5]):
        assert (await web.end(key)).finish_reason is FinishReason.ABORT
        assert web.tokens(key) == []
        assert [entry.trigger for entry in (await worker.event(key)).timeline] == [
            Trigger.ABORT_CONFIRM
        ]
    for key in (keys[2], keys[4], keys[6]):
        assert (await web.end(key)).finish_reason is FinishReason.LENGTH
    ends = [item.key for message in web.received for item in getattr(message, "items", [])
            if item.finish_reason is FinishReason.LENGTH]  # fmt: skip
    assert [key for key in ends if key in keys[2:]] == [keys[2], keys[4], keys[6]]
    await worker.is_clean()


@pytest.mark.parametrize("chunk", [1, 6, 7])
async def test_it_aborts_in_the_middle_of_a_long_prompt(
    worker: Harness, web: Client, chunk: int
) -> None:
    """Case 12: the prompt takes seven passes of 32 tokens; the abort comes during one of them."""
    worker.runner.hold()
    await web.submitted(submission(A, "x" * 200, max_tokens=50))
    worker.runner.let(chunk - 1)
    await worker.runner.stands()
    web.send(Abort(keys=[A], info=API))
    await worker.arrived(AbortAsked)
    worker.runner.free()
    end = await web.end(A)
    assert worker.runner.passes == chunk
    assert (end.finish_reason, web.tokens(A), end.text) == (FinishReason.ABORT, [], "")
    event = await worker.event(A)
    assert [entry.trigger for entry in event.timeline] == [Trigger.SCHEDULE, Trigger.ABORT_CONFIRM]
    assert 0 < event.wasted_seconds <= event.busy_seconds
    await worker.is_clean()


async def test_it_takes_no_token_of_a_pass_that_ran_when_the_abort_came(
    worker: Harness, web: Client
) -> None:
    await web.submitted(submission(A))
    await web.submitted(submission(B, max_tokens=500))
    await web.has_tokens(A, 3)
    worker.runner.hold()
    await worker.runner.stands()
    before = worker.worker.registry.live[A].output_tokens
    web.send(Abort(keys=[A], info=API))
    await worker.arrived(AbortAsked)
    worker.runner.free()
    end = await web.end(A)
    assert end.usage is not None
    assert end.usage.output_tokens == len(web.tokens(A)) == before
    assert (await worker.event(A)).output_tokens == before
    await web.abort(B)
    await worker.is_clean()


async def test_it_aborts_during_tokenization_without_a_pass(worker: Harness, web: Client) -> None:
    """Case 10."""
    worker.tokenizer.gate.clear()
    web.send(submission(A))
    assert (await web.abort(A)).releases == [Release(A, ReleaseOutcome.RELEASED)]
    end = await web.end(A)
    assert (end.finish_reason, web.tokens(A)) == (FinishReason.ABORT, [])
    assert web.all(Accepted) == [Accepted(key=A, epoch=worker.worker.epoch, prompt_tokens=[0])]
    worker.tokenizer.gate.set()
    assert (await web.ask()).running == 0
    assert worker.runner.passes == 0
    await worker.is_clean()


async def test_it_remembers_an_abort_that_overtakes_its_submit(
    worker: Harness, web: Client
) -> None:
    """Case 9."""
    other = await worker.connect("task")
    assert (await other.abort(A)).releases == [Release(A, ReleaseOutcome.UNKNOWN)]
    assert isinstance(await web.submitted(submission(A, n=2)), Accepted)
    for index in range(2):
        assert (await web.end(A, index)).abort == API
    assert worker.runner.passes == 0
    timeline = (await worker.event(A)).timeline
    assert [entry.trigger for entry in timeline] == [None, Trigger.ABORT_CONFIRM]
    await web.submitted(submission(RequestKey("req_a", 2), max_tokens=1))
    assert (await web.end(RequestKey("req_a", 2))).finish_reason is FinishReason.LENGTH


async def test_it_tells_what_had_ended_before(worker: Harness, web: Client) -> None:
    """Case 13."""
    await web.submitted(submission(A, max_tokens=2))
    await web.end(A)
    assert (await web.abort(A, A, B)).releases == [
        Release(A, ReleaseOutcome.ENDED),
        Release(B, ReleaseOutcome.UNKNOWN),
    ]
    assert (await worker.event(A)).timeline[-1].trigger is Trigger.FINISH


async def test_it_aborts_all_choices_of_all_prompts(worker: Harness, web: Client) -> None:
    """Case 1."""
    prompts = [TextPrompt("one"), TextPrompt("another")]
    accepted = await web.submitted(submission(A, prompts=prompts, n=3))
    assert isinstance(accepted, Accepted)
    assert accepted.prompt_tokens == [4, 8]
    await web.has_tokens(A, 10)
    await web.abort(A)
    ends = [await web.end(A, index) for index in range(6)]
    assert {end.finish_reason for end in ends} == {FinishReason.ABORT}
    event = await worker.event(A)
    counts = [len(web.tokens(A, index)) for index in range(6)]
    found = [entry.choice_end for entry in event.timeline if entry.choice_end]
    assert [len(end.token_ids) for end in found] == counts
    assert event.output_tokens == sum(counts)
    assert [entry.trigger for entry in event.timeline if entry.choice_end] == [
        *[None] * 5, Trigger.ABORT_CONFIRM
    ]  # fmt: skip
    await worker.is_clean()


async def test_it_aborts_the_whole_batch_without_another_pass(worker: Harness, web: Client) -> None:
    for key in (A, B, C):
        await web.submitted(submission(key))
    await web.has_tokens(B, 2)
    worker.runner.hold()
    await worker.runner.stands()
    passes = worker.runner.passes
    web.send(Abort(keys=[A, B, C], info=API))
    await worker.arrived(AbortAsked)
    worker.runner.free()
    await web.until(lambda: web.all(Aborted))
    assert {(await web.end(key)).finish_reason for key in (A, B, C)} == {FinishReason.ABORT}
    assert (await web.ask()).running == 0
    assert worker.runner.passes == passes + 1
    await worker.is_clean()


async def test_it_aborts_what_is_attached_to_a_connection_that_ends(worker: Harness) -> None:
    """Cases 16 and 24: running, waiting and in tokenization; detached work goes on."""
    leaving, staying = await worker.connect("leaving"), await worker.connect("staying")
    await staying.submitted(submission(B, max_tokens=300))
    await leaving.submitted(submission(A))
    await leaving.submitted(submission(C))
    background = RequestKey("req_background", 1)
    await leaving.submitted(submission(background, max_tokens=5, attached=False))
    await leaving.has_tokens(A, 2)
    await leaving.close()
    for key in (A, C):
        end = (await worker.event(key)).timeline[-1].choice_end
        assert end is not None
        assert end.abort is not None
        assert end.abort.cause is AbortCause.CLIENT_DISCONNECTED
    assert (await worker.event(C)).output_tokens == 0
    assert (await worker.event(background)).timeline[-1].trigger is Trigger.FINISH
    assert (await staying.end(B)).finish_reason is FinishReason.LENGTH
    await worker.is_clean()


async def test_it_ends_each_request_once_whatever_races(worker: Harness, web: Client) -> None:
    """Case 11, 100 times over: aborts near the end, from two sides."""
    other = await worker.connect("task")
    for round_ in range(100):
        key = RequestKey(f"req_{round_}", 1)
        web.send(submission(key, max_tokens=3))
        if round_ % 3:
            await web.has_tokens(key, round_ % 3)
        for client in (web, other):
            client.send(Abort(keys=[key], info=API))
        end = await web.end(key)
        ends = [entry for entry in (await worker.event(key)).timeline if entry.trigger
                and entry.trigger not in (Trigger.SCHEDULE,)]  # fmt: skip
        assert len(ends) == 1
        assert end.usage is not None
        assert end.usage.output_tokens == len(web.tokens(key))
    await worker.is_clean()
