"""The relay and its links, against an engine that says what each test tells it to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.line import LineTimes
from gateway.mailbox import Mailbox
from gateway.relay import Relay
from inference.errors import (
    ContextLengthExceededError,
    ModelNotFoundError,
    UnavailableError,
)
from inference.generation import AbortCause, FinishReason, SamplingParams
from inference.wire import (
    Abort,
    AbortInfo,
    CallFailed,
    Detokenize,
    Rejected,
    RequestKey,
    Submit,
    Text,
    TextPrompt,
    Tokenize,
    Tokens,
)
from tests.unit.gateway.fake_engine import FakeEngine
from tests.unit.gateway.fake_record import FakeRecord

TIMES = LineTimes(
    ask=0.05, hung=0.3, lost=1.0, accept=2.0, call=1.0, unopened=0.1, longest_backoff=0.1
)
KEY = RequestKey("req_1", 1)


def submission(key: RequestKey = KEY, *, n: int = 1) -> Submit:
    return Submit(key=key, model="tiny", prompts=[TextPrompt("a")], params=SamplingParams(), n=n)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions without an event of their own
            await asyncio.sleep(0.005)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    found = FakeEngine()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def record() -> FakeRecord:
    return FakeRecord()


@pytest.fixture
async def relay(engine: FakeEngine, record: FakeRecord) -> AsyncIterator[Relay]:
    found = Relay({"memory": engine.bus}, times=TIMES, record=record)
    found.start()
    await eventually(lambda: found.status().ready)
    yield found
    await found.stop()


async def submitted(relay: Relay, message: Submit | None = None) -> Mailbox:
    mailbox = await relay.submit(relay.place("tiny"), message or submission())
    mailbox.open()
    return mailbox


async def test_it_learns_who_the_engine_is(relay: Relay) -> None:
    placement = relay.place("tiny")
    assert (placement.replica, placement.epoch, placement.web) == ("r1", "e1", relay.web)
    assert [(model.name, model.max_model_len) for model in relay.models()] == [("tiny", 100)]
    with pytest.raises(ModelNotFoundError):
        relay.place("another")


async def test_it_takes_outputs_to_the_end(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await submitted(relay)
    engine.output(KEY, "ab")
    (first,) = await mailbox.drain()
    engine.finish(KEY)
    (last,) = await mailbox.drain()
    assert (first.text, last.finish_reason) == ("ab", FinishReason.STOP)
    assert await mailbox.drain() == []
    mailbox.close()
    assert engine.aborts == []


async def test_it_coalesces_what_its_reader_has_not_seen(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await submitted(relay, submission(n=2))
    for letter in "abc":
        engine.output(KEY, letter)
        engine.output(KEY, letter.upper(), index=1)
    engine.finish(KEY)
    await eventually(lambda: mailbox.progress[0].finish_reason)
    one, other = await mailbox.drain()
    assert (one.text, one.token_ids, one.finish_reason) == ("abc", [97, 98, 99], "stop")
    assert (other.text, other.finish_reason) == ("ABC", None)


async def test_it_ignores_what_comes_for_an_ended_choice(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await submitted(relay, submission(n=2))
    engine.finish(KEY)
    engine.output(KEY, "late")
    engine.output(KEY, "none", index=7)
    engine.output(RequestKey("req_1", 2), "another generation")
    engine.output(KEY, "x", index=1)
    await eventually(lambda: mailbox.progress[1].tokens)
    assert mailbox.tokens == 1
    assert [output.text for output in await mailbox.drain()] == ["", "x"]


async def test_it_raises_what_the_engine_refuses_with(relay: Relay, engine: FakeEngine) -> None:
    engine.accepts = False
    asking = asyncio.create_task(submitted(relay))
    await engine.next(Submit)
    code = ContextLengthExceededError.code
    engine.say(Rejected(key=KEY, epoch="e1", code=code, message="too long", param="prompt"))
    with pytest.raises(ContextLengthExceededError, match="too long") as caught:
        await asking
    assert (caught.value.param, caught.value.request_id) == ("prompt", "req_1")
    assert engine.aborts == []


async def test_it_aborts_what_a_client_leaves_while_it_is_submitted(
    relay: Relay, engine: FakeEngine
) -> None:
    engine.accepts = False
    asking = asyncio.create_task(submitted(relay))
    await engine.next(Submit)
    asking.cancel()
    abort = await engine.next(Abort)
    assert (abort.keys, abort.info.cause) == ([KEY], AbortCause.CLIENT_DISCONNECTED)


async def test_it_aborts_what_no_response_begins_to_read(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await relay.submit(relay.place("tiny"), submission())
    abort = await engine.next(Abort)
    assert abort.info.cause is AbortCause.CLIENT_DISCONNECTED
    assert mailbox.closed


async def test_it_aborts_once_when_closed_early(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await submitted(relay)
    mailbox.close()
    mailbox.close()
    await engine.next(Abort)
    await relay.link_for().ask()
    assert engine.aborts == []


async def test_it_stops_a_request_whose_reader_falls_too_far_behind(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await submitted(relay)
    mailbox.most_unread_tokens = 10
    engine.output(KEY, "a" * 11)
    abort = await engine.next(Abort)
    assert abort.info.cause is AbortCause.SLOW_CONSUMER
    engine.finish(KEY, finish_reason=FinishReason.ABORT, abort=abort.info)
    await eventually(lambda: mailbox.ended)
    (output,) = await mailbox.drain()
    assert (len(output.token_ids), output.finish_reason) == (11, FinishReason.ABORT)


async def test_it_comes_back_to_a_new_engine(relay: Relay, engine: FakeEngine) -> None:
    engine.epoch = "e2"
    await engine.hang_up()
    await eventually(lambda: relay.status().ready and relay.place("tiny").epoch == "e2")


async def test_it_sends_no_new_work_to_an_engine_that_is_silent(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await submitted(relay)
    engine.output(KEY, "a")
    engine.answers = False
    await eventually(lambda: not relay.status().ready)
    with pytest.raises(UnavailableError):
        relay.place("tiny")
    assert await relay.answers(within=0.05) is False
    await eventually(lambda: mailbox.ended)


async def test_it_does_not_wait_for_an_acceptance_for_ever(engine: FakeEngine) -> None:
    engine.accepts = False
    times = LineTimes(accept=0.1, ask=0.05)
    relay = Relay({"memory": engine.bus}, times=times, record=FakeRecord())
    relay.start()
    await eventually(lambda: relay.status().ready)
    with pytest.raises(UnavailableError):
        await relay.submit(relay.place("tiny"), submission())
    assert (await engine.next(Abort)).keys == [KEY]
    await relay.stop()


async def test_it_sends_aborts_from_any_thread(relay: Relay, engine: FakeEngine) -> None:
    info = AbortInfo(id="abt_1", cause=AbortCause.API)
    keys = {"r1": [KEY], "elsewhere": [RequestKey("req_9", 1)]}
    threading.Thread(target=relay.abort_soon, args=(keys, info)).start()
    abort = await engine.next(Abort)
    assert (abort.keys, abort.info) == ([KEY], info)


async def test_it_sends_no_aborts_once_stopped(engine: FakeEngine) -> None:
    relay = Relay({"memory": engine.bus}, times=TIMES)
    relay.abort_soon({"r1": [KEY]}, AbortInfo(cause=AbortCause.API))


async def test_it_asks_the_tokenizer(relay: Relay, engine: FakeEngine) -> None:
    link = relay.link_for("tiny")
    asking = asyncio.create_task(link.tokenize(TextPrompt("ab")))
    question = await engine.next(Tokenize)
    engine.say(Tokens(call=question.call, token_ids=[1, 2], max_model_len=100))
    assert (await asking).token_ids == [1, 2]
    answering = asyncio.create_task(link.detokenize([1, 2]))
    engine.say(Text(call=(await engine.next(Detokenize)).call, text="ab"))
    assert (await answering).text == "ab"
    failing = asyncio.create_task(link.detokenize([9]))
    call = (await engine.next(Detokenize)).call
    engine.say(CallFailed(call=call, code="invalid_request", message="no such token"))
    with pytest.raises(Exception, match="no such token"):
        await failing


async def test_it_takes_no_work_while_it_drains(relay: Relay, engine: FakeEngine) -> None:
    mailbox = await submitted(relay)
    relay.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        relay.place("tiny")
    assert not relay.status().ready
    relay.abort_all(AbortCause.SHUTDOWN)
    assert (await engine.next(Abort)).info.cause is AbortCause.SHUTDOWN
    assert not mailbox.closed
