"""One service under the supervisor: started, watched until ready, restarted when it dies.

It never waits: `step` looks once and moves on. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import selectors
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from haltline.child import Child, Lifeline

_KILLED = 128 + signal.SIGKILL
_NOT_STARTED = 126
# What a process ends with that was given a wrong setting or argument: another try cannot help.
_REFUSED = 2

Probe = Callable[[], bool]


def started(*, really: bool = True) -> bool:
    """The probe of a service that is ready as soon as it runs."""
    return really


@dataclass(slots=True)
class SafeProbe:
    """A probe that fails says "not ready", and why, once: it must not end the one who looks."""

    probe: Probe
    say: Callable[[str], None]
    _is_told: bool = False

    def __call__(self) -> bool:
        try:
            return self.probe()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the other services go on
            if not self._is_told:
                self.say(f"not ready: its probe failed: {type(problem).__name__}: {problem}")
            self._is_told = True
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`one_shot`: ready when it has ended with code 0; it is never restarted.

    `environment` is whole: nothing is inherited besides. `grace` is how long it may take to end.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    probe: Probe = started
    one_shot: bool = False
    grace: float = 10.0
    ready_within: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A pause that doubles with each death of the last `window` seconds, `budget` times."""

    first_pause: float = 0.1
    longest_pause: float = 5.0
    budget: int = 5
    window: float = 60.0

    def pause(self, deaths: int) -> float:
        return float(min(self.first_pause * 2 ** (deaths - 1), self.longest_pause))


class Phase(Enum):
    IDLE = auto()
    STARTING = auto()
    READY = auto()
    RESTING = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(slots=True)
class Unit:
    service: Service
    policy: RestartPolicy
    lifeline: Lifeline
    selector: selectors.BaseSelector
    say: Callable[..., None]
    phase: Phase = Phase.IDLE
    code: int | None = None
    child: Child | None = None
    _due: float = 0.0
    _deaths: deque[float] = field(default_factory=deque)
    _probe: Probe = started

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def is_ready(self) -> bool:
        return self.phase in {Phase.READY, Phase.DONE}

    @property
    def is_alive(self) -> bool:
        return self.child is not None and self.child.exit_code() is None

    def step(self, now: float) -> None:
        if self.phase is Phase.IDLE or (self.phase is Phase.RESTING and now >= self._due):
            self._start(now)
        elif self.phase in {Phase.STARTING, Phase.READY}:
            self._look(now)

    def _start(self, now: float) -> None:
        try:
            self.child = Child.start(
                self.service.command, environment=self.service.environment, lifeline=self.lifeline
            )
        except OSError as problem:
            self.say(self.name, f"cannot be started: {problem}")
            self._ended(_NOT_STARTED, now)
            return
        self._probe = SafeProbe(self.service.probe, lambda line: self.say(self.name, line))
        self.selector.register(self.child.output, selectors.EVENT_READ, self._pass_output_on)
        self.phase = Phase.STARTING
        self._due = now + self.service.ready_within

    def _look(self, now: float) -> None:
        code = self.child.exit_code() if self.child is not None else None
        if code is not None:
            self._ended(code, now)
        elif self.phase is Phase.STARTING:
            self._look_whether_ready(now)

    def _look_whether_ready(self, now: float) -> None:
        if not self.service.one_shot and self._probe():
            self.phase = Phase.READY
            self.say(self.name, "ready")
        elif now > self._due:
            self.say(self.name, f"killed: not ready within {self.service.ready_within:.0f} s")
            self.bury()
            self._ended(_KILLED, now)

    def _ended(self, code: int, now: float) -> None:
        self.bury()
        self.code = code
        if self.service.one_shot:
            self.phase = Phase.FAILED if code else Phase.DONE
        else:
            self._rest(code, now)
        if self.phase is Phase.FAILED:
            self.say(self.name, f"ended with code {code}: stopping all")

    def _rest(self, code: int, now: float) -> None:
        self._deaths.append(now)
        while self._deaths[0] < now - self.policy.window:
            self._deaths.popleft()
        if code == _REFUSED or len(self._deaths) > self.policy.budget:
            self.phase = Phase.FAILED
            return
        pause = self.policy.pause(len(self._deaths))
        self.phase, self._due = Phase.RESTING, now + pause
        self.say(self.name, f"ended with code {code}: starting it again in {pause:.1f} s")

    def ask_to_end(self) -> None:
        if self.child is not None:
            self.child.ask_to_end()

    def bury(self) -> None:
        """Kill what is left of the child and what it started; say its last words."""
        if self.child is None:
            return
        self.child.sweep()
        while not self.child.is_silent and self._pass_output_on():
            pass
        if not self.child.is_silent:
            self.selector.unregister(self.child.output)
        self.child.close()
        self.child = None

    def _pass_output_on(self) -> bool:
        """Say the lines that have arrived; False where there was nothing new."""
        lines = self.child.read() if self.child is not None else None
        for line in lines or ():
            self.say(self.name, line)
        if self.child is not None and self.child.is_silent:
            self.selector.unregister(self.child.output)
        return lines is not None
