"""The engine process's other promises: answers, attachments, deadlines, shutdown, bad messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference.bus.memory import MemoryBus, MemoryConnection
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import (
    Abort,
    Accepted,
    Attach,
    CallFailed,
    ChatPrompt,
    Detokenize,
    Hello,
    Outputs,
    Rejected,
    RequestKey,
    Text,
    TextPrompt,
    Tokenize,
    TokenPrompt,
    Tokens,
)
from inference.worker.commands import Arrive, Tokenized
from tests.doubles.byte_tokenizer import BOS, EOS
from tests.doubles.worker_harness import API, Client, Harness, running, submission

A, B, C = (RequestKey(f"req_{name}", 1) for name in "abc")


@pytest.fixture
async def worker() -> AsyncIterator[Harness]:
    async with running(MemoryBus(), max_running=2) as harness:
        yield harness


@pytest.fixture
async def web(worker: Harness) -> Client:
    return await worker.connect("web")


async def test_it_runs_a_request_to_its_length(worker: Harness, web: Client) -> None:
    accepted = await web.submitted(submission(A, ChatPrompt([{"role": "user", "content": "hi"}]),
                                              max_tokens=6))  # fmt: skip
    assert isinstance(accepted, Accepted)
    end = await web.end(A)
    assert end.finish_reason is FinishReason.LENGTH
    assert len(web.tokens(A)) == 6
    assert web.text(A) == bytes(web.tokens(A)).decode()
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.output_tokens) == (accepted.prompt_tokens[0], 6)
    event = await worker.event(A)
    assert [entry.trigger for entry in event.timeline] == [Trigger.SCHEDULE, Trigger.FINISH]
    times = [entry.at for entry in event.timeline]
    first = event.timeline[-1].first_token_at
    assert first is not None
    assert times[0] <= first <= times[1]
    assert event.busy_seconds > 0
    assert event.prompt_tokens == accepted.prompt_tokens[0]
    await worker.is_clean()


async def test_it_sends_one_message_per_step_and_connection(worker: Harness, web: Client) -> None:
    other = await worker.connect("other")
    worker.runner.hold()
    for client, key in ((web, A), (web, B), (other, C)):
        client.send(submission(key, max_tokens=3))
    await worker.runner.stands()
    worker.runner.free()
    for client, key in ((web, A), (web, B), (other, C)):
        await client.end(key)
    steps = [message.step for message in web.all(Outputs)]
    assert steps == sorted(set(steps))
    assert {item.key for message in other.all(Outputs) for item in message.items} == {C}


async def test_it_gives_choices_of_a_seeded_prompt_different_seeds(
    worker: Harness, web: Client
) -> None:
    await web.submitted(submission(A, n=3, seed=7, max_tokens=1))
    for index in range(3):
        await web.end(A, index)
    chunks = [chunk for batch in worker.runner.batches for chunk in batch.chunks]
    assert {chunk.sequence.params.seed for chunk in chunks} == {7, 8, 9}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_tokens": 600}, "context_length_exceeded"),
        ({"temperature": -1.0}, "invalid_request"),
        ({"top_p": float("nan")}, "invalid_request"),
        ({"n": 0}, "invalid_request"),
        ({"n": -1}, "invalid_request"),
        ({"n": 10**12}, "invalid_request"),
        ({"prompts": []}, "invalid_request"),
        ({"prompts": [TokenPrompt([999])]}, "invalid_request"),
        ({"prompts": [TokenPrompt([])]}, "invalid_request"),
        ({"prompts": [ChatPrompt([{"role": 1}])]}, "invalid_request"),
        ({"stop": ("",)}, "invalid_request"),
        ({"deadline": -1.0}, "invalid_request"),
    ],
)
async def test_it_rejects_what_cannot_run(
    worker: Harness, web: Client, fields: dict[str, Any], code: str
) -> None:
    rejected = await web.submitted(submission(A, **fields))
    assert isinstance(rejected, Rejected)
    assert rejected.code == code
    timeline = (await worker.event(A)).timeline
    assert [(entry.trigger, entry.detail.get("code")) for entry in timeline] == [
        (Trigger.REJECT, code)
    ]
    await worker.is_clean()


async def test_it_rejects_a_model_that_it_does_not_serve(worker: Harness, web: Client) -> None:
    message = submission(A)
    rejected = await web.submitted(type(message)(key=A, model="gpt", prompts=message.prompts,
                                                 params=message.params))  # fmt: skip
    assert isinstance(rejected, Rejected)
    assert rejected.code == "model_not_found"


async def test_it_rejects_all_choices_when_the_queue_has_no_place_for_all() -> None:
    """Case 20."""
    async with running(MemoryBus(), max_running=1, max_queued=3) as worker:
        web = await worker.connect()
        await web.submitted(submission(A))
        await web.has_tokens(A, 1)
        await web.submitted(submission(B, n=2))
        rejected = await web.submitted(submission(C, n=2))
        assert isinstance(rejected, Rejected)
        assert rejected.code == "queue_full"
        assert rejected.retry_after
        assert (await web.ask()).waiting == 2
        await web.abort(A, B)
        await worker.is_clean()


async def test_it_ignores_a_submit_that_comes_twice(worker: Harness, web: Client) -> None:
    other = await worker.connect("other")
    await web.submitted(submission(A, max_tokens=20))
    for client in (web, other):
        client.send(submission(A, max_tokens=20))
    await web.end(A)
    web.send(submission(A, max_tokens=20))
    await other.ask()
    await web.ask()
    assert len(web.all(Accepted)) == 1
    assert not other.all(Accepted)
    assert not other.all(Rejected)
    assert worker.worker.registry.counts.duplicates == 3
    await other.close()
    await worker.is_clean()


async def test_it_goes_on_after_malformed_messages(worker: Harness, web: Client) -> None:
    """Case 6."""
    await web.submitted(submission(A, max_tokens=30))
    assert isinstance(web.connection, MemoryConnection)
    for rubbish in (b"", b"\xc1", b"\x81\xa1t\xa5abort", b'{"t":"abort"}'):
        web.connection.send_frame(rubbish)
    web.send(Hello(version=1, client="again"))
    web.send(Abort(keys=[], info=API))
    assert (await web.end(A)).finish_reason is FinishReason.LENGTH
    assert worker.worker.registry.counts.malformed == 5
    await worker.is_clean()


async def test_it_ends_a_request_at_its_deadline(worker: Harness, web: Client) -> None:
    worker.runner.hold()
    await web.submitted(submission(A, deadline=0.05))
    await worker.runner.stands()
    await asyncio.sleep(0.06)
    worker.runner.free()
    end = await web.end(A)
    assert end.abort is not None
    assert (end.finish_reason, end.abort.cause) == (FinishReason.ABORT, AbortCause.DEADLINE)
    await worker.is_clean()


async def test_it_ends_an_idle_engines_deadline_without_being_asked(
    worker: Harness, web: Client
) -> None:
    worker.tokenizer.gate.clear()
    web.send(submission(A, deadline=0.05))
    assert (await web.end(A)).finish_reason is FinishReason.ABORT
    assert worker.runner.passes == 0


async def test_it_expires_what_was_never_started(worker: Harness, web: Client) -> None:
    """Case 21."""
    worker.runner.hold()
    await web.submitted(submission(A, n=2, max_tokens=30, queue_deadline=60.0))
    await worker.runner.stands()
    web.send(submission(C, queue_deadline=0.02, deadline=60.0))
    await asyncio.sleep(0.03)
    worker.runner.free()
    end = await web.end(C)
    assert (end.finish_reason, web.tokens(C)) == (FinishReason.EXPIRED, [])
    timeline = (await worker.event(C)).timeline
    assert [entry.trigger for entry in timeline] == [Trigger.EXPIRE]
    assert (await web.end(A)).finish_reason is FinishReason.LENGTH
    await worker.is_clean()


async def test_it_drains_then_aborts_what_takes_too_long(worker: Harness, web: Client) -> None:
    """Cases 24 and 37, in the engine."""
    worker.runner.hold()
    await web.submitted(submission(A, max_tokens=3))
    await worker.runner.stands()
    web.send(submission(B))
    await worker.arrived(Tokenized, 2)
    worker.worker.drain(30.0)
    web.send(submission(C))
    await worker.arrived(Arrive, 3)
    worker.runner.let(5)
    assert (await web.end(A)).finish_reason is FinishReason.LENGTH
    rejected = web.verdict(C)
    assert isinstance(rejected, Rejected)
    assert rejected.code == "unavailable"
    await worker.runner.stands()
    assert worker.live == {B}
    worker.worker.drain(0.0)
    worker.runner.free()
    end = await web.end(B)
    assert end.abort is not None
    assert end.abort.cause is AbortCause.SHUTDOWN
    assert await worker.worker.finished()
    await web.until(lambda: web.is_closed)
    assert (await worker.event(B)).timeline[-1].trigger is Trigger.ABORT_CONFIRM


async def test_it_ends_by_itself_when_idle(worker: Harness) -> None:
    worker.worker.drain(1000.0)
    assert await worker.worker.finished()


async def test_it_replays_and_follows_for_another_connection(worker: Harness, web: Client) -> None:
    await web.submitted(submission(A, max_tokens=40, n=2, logprobs=0, echo=True))
    await web.has_tokens(A, 5)
    worker.runner.hold()
    await worker.runner.stands()
    late, later = await worker.connect("late"), await worker.connect("later")
    late.send(Attach(key=A))
    later.send(Attach(key=A, from_token=3))
    worker.runner.free()
    for index in range(2):
        end = await web.end(A, index)
        await late.end(A, index)
        assert (await later.end(A, index)).usage is not None
        assert late.tokens(A, index) == web.tokens(A, index)
        assert late.text(A, index) == web.text(A, index)
        assert late.outputs(A, index)[0].prompt_text == "hello"
        assert later.tokens(A, index) == web.tokens(A, index)[3:]
        assert later.text(A, index) == web.text(A, index)[3:]
        assert later.outputs(A, index)[0].prompt_text is None
        assert end.finish_reason is FinishReason.LENGTH


async def test_it_replays_a_request_that_has_just_ended(worker: Harness, web: Client) -> None:
    await web.submitted(submission(A, max_tokens=4, attached=False))
    await worker.event(A)
    web.send(Attach(key=A, from_token=1))
    end = await web.end(A)
    assert len(web.tokens(A)) == 3
    assert end.finish_reason is FinishReason.LENGTH


async def test_it_keeps_a_request_whose_follower_leaves(worker: Harness, web: Client) -> None:
    await web.submitted(submission(A, max_tokens=60))
    other = await worker.connect("follower")
    other.send(Attach(key=A))
    await other.until(lambda: other.tokens(A))
    await other.close()
    assert (await web.end(A)).finish_reason is FinishReason.LENGTH
    await worker.is_clean()


async def test_it_says_that_it_does_not_know_a_request(web: Client) -> None:
    web.send(Attach(key=A))
    rejected = await web.next(Rejected)
    assert (rejected.key, rejected.code) == (A, "not_found")


async def test_it_sends_a_background_requests_outputs_to_nobody(
    worker: Harness, web: Client
) -> None:
    await web.submitted(submission(A, max_tokens=4, attached=False))
    event = await worker.event(A)
    assert event.output_tokens == 4
    assert event.timeline[-1].choice_end is not None
    assert len(event.timeline[-1].choice_end.text) == 4
    await web.ask()
    assert not web.all(Outputs)


async def test_it_answers_questions_about_tokens(web: Client) -> None:
    web.send(Tokenize(call=1, prompt=TextPrompt("ab")))
    web.send(Tokenize(call=2, prompt=TextPrompt("ab"), add_special_tokens=False))
    web.send(Detokenize(call=3, token_ids=[*b"ab", EOS]))
    web.send(Detokenize(call=4, token_ids=[5000]))
    await web.until(lambda: web.all(CallFailed))
    assert web.all(Tokens) == [
        Tokens(call=1, token_ids=[BOS, *b"ab"], max_model_len=512),
        Tokens(call=2, token_ids=[*b"ab"], max_model_len=512),
    ]
    assert web.all(Text) == [Text(call=3, text="ab<eos>")]
    assert [(failed.call, failed.code) for failed in web.all(CallFailed)] == [
        (4, "invalid_request")
    ]


async def test_it_ends_a_batch_that_fails_and_serves_on(worker: Harness, web: Client) -> None:
    worker.runner.hold()
    await web.submitted(submission(A))
    await worker.runner.stands()
    worker.runner.fail_next = RuntimeError("a kernel fault")
    worker.runner.free()
    end = await web.end(A)
    assert (end.finish_reason, end.error_code) == (FinishReason.ERROR, "engine_error")
    assert end.error_message
    event = await worker.event(A)
    assert event.timeline[-1].trigger is Trigger.FAIL
    assert event.timeline[-1].choice_end is not None
    assert event.timeline[-1].choice_end.error_code == "engine_error"
    await worker.is_clean()


async def test_it_reports_preemption_and_resumption() -> None:
    async with running(MemoryBus(), max_running=2, kv_tokens=64, block_size=8) as worker:
        web = await worker.connect()
        worker.runner.hold()
        for key in (A, B):
            web.send(submission(key, max_tokens=40))
        await worker.runner.stands()
        worker.runner.free()
        for key in (A, B):
            await web.end(key)
        triggers = [entry.trigger for entry in (await worker.event(B)).timeline]
        assert triggers == [Trigger.SCHEDULE, Trigger.PREEMPT, Trigger.SCHEDULE, Trigger.FINISH]
        assert (await worker.event(B)).preemptions == 1
        await worker.is_clean()


async def test_it_fails_all_requests_when_the_engine_itself_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise RuntimeError("the scheduler lost count")

    async with running(MemoryBus()) as worker:
        web = await worker.connect()
        worker.runner.hold()
        for key in (A, B):
            web.send(submission(key, attached=key is A))
        await worker.runner.stands()
        monkeypatch.setattr(worker.engine, "step", broken)
        worker.runner.free()
        assert (await web.end(A)).error_code == "engine_error"
        assert (await worker.event(B)).timeline[-1].trigger is Trigger.FAIL
        assert await worker.worker.finished() is False
        worker.has_failed = True
