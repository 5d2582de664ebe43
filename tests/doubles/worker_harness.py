"""A whole worker in the test's own process: real engine, real threads, any bus.

The model is a fake one that counts its passes and can be held before one, so a test decides what
happens between two steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from inference.bus import Bus, Connection
from inference.bus.handshake import greet
from inference.engine.batch import Batch, Sampled
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.events import RequestEvent
from inference.generation import AbortCause, SamplingParams
from inference.lifecycle import Trigger
from inference.wire import (
    Abort,
    Aborted,
    AbortInfo,
    Accepted,
    AnyMessage,
    Ask,
    ChoiceOutput,
    Outputs,
    Prompt,
    Rejected,
    RequestKey,
    Status,
    Submit,
    TextPrompt,
)
from inference.worker.commands import Command
from inference.worker.config import WorkerConfig
from inference.worker.ledger_events import Publisher
from inference.worker.process import ReadyEngine, Worker
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.fake_runner import FakeRunner

PATIENCE = 10.0
API = AbortInfo(id="abt_1", cause=AbortCause.API, reason="enough")

ENDS = {Trigger.FINISH, Trigger.FAIL, Trigger.REJECT, Trigger.EXPIRE, Trigger.ABORT_CONFIRM}

Kind = TypeVar("Kind")


class GatedRunner(FakeRunner):
    """`hold` stops it before its next forward pass, `let` lets some through, `free` all."""

    def __init__(self, *, block_size: int) -> None:
        super().__init__(block_size=block_size)
        self._changed = threading.Condition()
        self._allowed: int | None = None
        self._is_standing = False

    def run(self, batch: Batch) -> Sampled:
        with self._changed:
            self._is_standing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._allowed != 0, PATIENCE):
                raise TimeoutError("the test never let the pass through")
            self._is_standing = False
            self._allowed = None if self._allowed is None else self._allowed - 1
        return super().run(batch)

    def hold(self) -> None:
        with self._changed:
            self._allowed = 0

    def let(self, count: int) -> None:
        with self._changed:
            self._allowed = count
            self._changed.notify_all()

    def free(self) -> None:
        with self._changed:
            self._allowed = None
            self._changed.notify_all()

    async def stands(self) -> None:
        """Wait until a pass stands before the shut gate: the engine is in the middle of a step."""
        assert await asyncio.to_thread(self._wait_for_standing)

    def _wait_for_standing(self) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_standing and self._allowed == 0, PATIENCE
            )

    @property
    def passes(self) -> int:
        return len(self.batches)


class SlowTokenizer(ByteTokenizer):
    """Encodes when `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert self.gate.wait(PATIENCE)
        return super().encode(text, add_special_tokens=add_special_tokens)


class Client:
    """A greeted connection that sorts what it gets."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.received: list[AnyMessage] = []
        self.is_closed = False
        self._arrived = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                self.received.append(await self.connection.receive())
                self._arrived.set()
        except ConnectionError:
            self.is_closed = True
            self._arrived.set()

    def send(self, *messages: AnyMessage) -> None:
        for message in messages:
            self.connection.send(message)

    async def close(self) -> None:
        self._reader.cancel()
        await self.connection.close()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something to be true of what was received."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.received if isinstance(message, kind)]

    async def next(self, kind: type[Kind]) -> Kind:
        """The next message of that kind after those that are here already."""
        count = len(self.all(kind))
        await self.until(lambda: len(self.all(kind)) > count)
        return self.all(kind)[count]

    async def ask(self) -> Status:
        self.send(Ask(call=len(self.received)))
        return await self.next(Status)

    async def submitted(self, submit: Submit) -> Accepted | Rejected:
        self.send(submit)
        await self.until(lambda: self.verdict(submit.key))
        verdict = self.verdict(submit.key)
        assert verdict is not None
        return verdict

    def verdict(self, key: RequestKey) -> Accepted | Rejected | None:
        found: list[Accepted | Rejected] = [*self.all(Accepted), *self.all(Rejected)]
        return next((verdict for verdict in found if verdict.key == key), None)

    async def abort(self, *keys: RequestKey, info: AbortInfo = API) -> Aborted:
        self.send(Abort(keys=list(keys), info=info))
        return await self.next(Aborted)

    def outputs(self, key: RequestKey, index: int = 0) -> list[ChoiceOutput]:
        items = [item for message in self.all(Outputs) for item in message.items]
        return [item for item in items if item.key == key and item.index == index]

    def tokens(self, key: RequestKey, index: int = 0) -> list[int]:
        return [token for item in self.outputs(key, index) for token in item.token_ids]

    def text(self, key: RequestKey, index: int = 0) -> str:
        return "".join(item.text for item in self.outputs(key, index))

    async def has_tokens(self, key: RequestKey, count: int) -> None:
        await self.until(lambda: len(self.tokens(key)) >= count)

    async def end(self, key: RequestKey, index: int = 0) -> ChoiceOutput:
        """The last output of a choice; nothing may come after it."""
        await self.until(lambda: any(item.finish_reason for item in self.outputs(key, index)))
        items = self.outputs(key, index)
        assert [bool(item.finish_reason) for item in items] == [False] * (len(items) - 1) + [True]
        return items[-1]


class Harness:
    """`has_failed`: a test expects the engine to end by a fault."""

    def __init__(self, worker: Worker, engine: Engine, runner: GatedRunner, bus: Bus) -> None:
        self.worker, self.engine, self.runner, self.bus = worker, engine, runner, bus
        self.tokenizer = SlowTokenizer()
        self.clients: list[Client] = []
        self.put: list[Command] = []
        self.has_failed = False
        original = worker.inbox.put

        def put(command: Command) -> None:
            original(command)
            self.put.append(command)

        setattr(worker.inbox, "put", put)  # noqa: B010 - a method, which mypy would not let go

    async def connect(self, name: str = "web") -> Client:
        connection = await self.bus.connect()
        await greet(connection, client=name)
        self.clients.append(Client(connection))
        return self.clients[-1]

    async def event(self, key: RequestKey) -> RequestEvent:
        """What the ledger was told about a request, once that has ended."""
        await self.until(lambda: self._ended(key))
        return self._ended(key)[0]

    def _ended(self, key: RequestKey) -> list[RequestEvent]:
        waiting = [event for event in self.worker.publisher.waiting if event.key == key]
        return [event for event in waiting if event.timeline[-1].trigger in ENDS]

    async def arrived(self, kind: type[Command], count: int = 1) -> None:
        """Wait until so many commands of that kind have been put into the engine's inbox."""
        await self.until(lambda: sum(isinstance(put, kind) for put in self.put) >= count)

    @property
    def live(self) -> set[RequestKey]:
        return set(self.worker.registry.live)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - another thread's state
                await asyncio.sleep(0.002)

    async def is_clean(self) -> None:
        """Nothing is left of any request, and the engine still works."""
        client = await self.connect("checker")
        key = RequestKey("req_check", 1)
        await client.submitted(submission(key, max_tokens=2))
        assert (await client.end(key)).finish_reason == "length"
        await self.until(lambda: not self.live)
        status = await client.ask()
        assert (status.running, status.waiting) == (0, 0)
        assert status.free_slots == status.total_slots
        assert status.free_blocks == status.total_blocks
        self.engine.check_integrity()
        await client.close()


def submission(key: RequestKey, prompt: str | Prompt = "hello", **fields: Any) -> Submit:
    """A Submit; what is a sampling parameter goes there."""
    names = SamplingParams.__struct_fields__
    params = {name: fields.pop(name) for name in list(fields) if name in names}
    prompts = fields.pop("prompts", [TextPrompt(prompt) if isinstance(prompt, str) else prompt])
    sampling = SamplingParams(**{"max_tokens": 400, **params})
    return Submit(key=key, model="tiny", prompts=prompts, params=sampling, **fields)


def config(**fields: Any) -> WorkerConfig:
    sizes: dict[str, Any] = {
        "max_running": 4,
        "kv_tokens": 4096,
        "step_tokens": 32,
        "block_size": 8,
    }
    sizes |= {name: fields.pop(name) for name in list(fields) if name in EngineConfig.__slots__}
    values: dict[str, Any] = {
        "home": Path("/nonexistent"), "model": "tiny", "device": "cpu", "dtype": "float32",
        "engine": EngineConfig(**{"max_model_len": 512, **sizes}), "bus_url": "unix:/x",
        "bus_secret": "", "broker_url": None, "replica": "engine-0", "step_delay": 0.0,
        "grace": 5.0, "threads": None, "parent_pid": None,
    }  # fmt: skip
    return WorkerConfig(**{**values, **fields})


@asynccontextmanager
async def running(
    bus: Bus, *, publisher: Publisher | None = None, **fields: Any
) -> AsyncIterator[Harness]:
    """A worker from its start to its orderly end."""
    settings = config(**fields)
    runner = GatedRunner(block_size=settings.engine.block_size)
    tokenizer = SlowTokenizer()
    engine = Engine(settings.engine, runner, tokenizer)
    ready = ReadyEngine(engine=engine, tokenizer=tokenizer, max_model_len=512)
    worker = Worker(settings, ready, publisher=publisher or Publisher(None))
    harness = Harness(worker, engine, runner, bus)
    harness.tokenizer = tokenizer
    await worker.start(bus)
    try:
        yield harness
    finally:
        runner.free()
        tokenizer.gate.set()
        worker.drain(0.0)
        async with asyncio.timeout(PATIENCE):
            assert await worker.finished() is not harness.has_failed
        for client in harness.clients:
            await client.close()
