"""Runs services as one: in stages, each ready before the next; restarts what dies; ends in order.

A service that keeps dying ends all the others, and the run takes its exit code. It knows nothing
of what the services are: see `haltline.services_table`.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from haltline.child import Lifeline
from haltline.unit import Phase, Probe, RestartPolicy, SafeProbe, Service, Unit, started

_STARTING_PAUSE = 0.05
_IDLE_PAUSE = 1.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Write = Callable[[str], None]


class Supervisor:
    """`stages`: services that start together; they end one by one, in the reverse order.

    `on_ready` is called once, when every service has become ready and `settled` says that they
    work together. `write` takes whole lines.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Service]],
        *,
        write: Write,
        on_ready: Callable[[], None],
        settled: Probe = started,
        policy: RestartPolicy | None = None,
        lifeline: Lifeline | None = None,
    ) -> None:
        self._lifeline = lifeline or Lifeline()
        self._selector = selectors.DefaultSelector()
        self._stages = [
            [self._unit(service, policy or RestartPolicy()) for service in stage]
            for stage in stages
        ]
        self._units = [unit for stage in self._stages for unit in stage]
        self._width = max(len(unit.name) for unit in self._units)
        self._write = write
        self._settled = SafeProbe(settled, lambda line: self.say("serve", line))
        self._on_ready = on_ready
        self._is_announced = False
        self._code: int | None = None
        self._in_a_hurry = False

    def run(self) -> int:
        """Until a signal comes or a service has used up its restarts; gives the exit code."""
        with self._signals():
            try:
                while self._code is None:
                    self._turn()
            finally:
                self._stop()
        return self._code

    def say(self, name: str, *lines: str) -> None:
        """Who is not there to read any more cannot stop the work that others wait for."""
        try:
            for line in lines:
                self._write(f"{time.strftime('%H:%M:%S')} {name:<{self._width}} | {line}")
        except OSError:
            self._write = _to_nobody

    def _unit(self, service: Service, policy: RestartPolicy) -> Unit:
        return Unit(service, policy, self._lifeline, self._selector, self.say)

    def _turn(self) -> None:
        self._listen(_STARTING_PAUSE if self._is_moving() else _IDLE_PAUSE)
        for stage in self._stages:
            for unit in stage:
                unit.step(time.monotonic())
                if unit.phase is Phase.FAILED and self._code is None:
                    self._code = unit.code or 1
            if not all(unit.is_ready for unit in stage):
                return
        self._announce()

    def _announce(self) -> None:
        if not self._is_announced and self._settled():
            self._is_announced = True
            self._on_ready()

    def _is_moving(self) -> bool:
        return not self._is_announced or not all(unit.is_ready for unit in self._units)

    def _listen(self, pause: float) -> None:
        """Wait for output, a signal or the end of the pause; whoever registered deals with it."""
        for key, _ in self._selector.select(pause):
            key.data()

    def _stop(self) -> None:
        for unit in reversed(self._units):
            if unit.child is not None:
                self._end(unit)
        self._selector.close()
        self._lifeline.close()

    def _end(self, unit: Unit) -> None:
        self.say(unit.name, "stopping")
        give_up = time.monotonic() + unit.service.grace
        unit.ask_to_end()
        while unit.is_alive and time.monotonic() < give_up and not self._in_a_hurry:
            self._listen(_STARTING_PAUSE)
        if unit.is_alive:
            self.say(unit.name, "killed: it did not end in time")
        unit.bury()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals wake the selector up; the end of a child does as well."""
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        self._selector.register(reading, selectors.EVENT_READ, lambda: _empty(reading))
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_stop) for number in _STOPS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _wake_up)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(woken)
            os.close(reading)
            os.close(writing)

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        """The first asks for an orderly end; a Ctrl-C after it skips the grace."""
        if self._code is None:
            self._code = 128 + number
        elif number == signal.SIGINT:
            self._in_a_hurry = True


def _empty(pipe: int) -> None:
    """The wake-up was the message, its bytes are not."""
    with suppress(BlockingIOError):
        os.read(pipe, 4096)


def _wake_up(_number: int, _frame: FrameType | None) -> None:
    """The byte in the wake-up pipe is all that is wanted."""


def _to_nobody(_line: str) -> None:
    """Where lines go when nobody reads them any more."""
