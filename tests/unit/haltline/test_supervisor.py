from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haltline.child import Lifeline
from haltline.supervisor import Supervisor
from haltline.unit import RestartPolicy, Service, started

QUICK = RestartPolicy(first_pause=0.01, longest_pause=0.05, budget=3, window=60.0)
STAYS = "import time; print('up', flush=True); time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]


def service(name: str, code: str, **changes: object) -> Service:
    options: dict[str, object] = {"probe": started, "grace": 5.0, **changes}
    return Service(name=name, command=python(code), environment=dict(os.environ), **options)  # type: ignore[arg-type]


class Run:
    """A supervisor in the main thread, and what happened to it."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.lines: list[str] = []
        self.guarded = guarded
        self.on_ready: Callable[[], None] = self.interrupt
        self.settled: Callable[[], bool] = started

    def interrupt(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def __call__(self, *stages: list[Service]) -> int:
        supervisor = Supervisor(
            stages,
            write=self.lines.append,
            on_ready=lambda: self.on_ready(),
            settled=self.settled,
            policy=QUICK,
            lifeline=Lifeline(guarded=self.guarded),
        )
        return supervisor.run()

    def said(self, name: str) -> list[str]:
        """What stood after `HH:MM:SS name | `."""
        parts = [line.partition(" | ") for line in self.lines]
        return [text for head, _, text in parts if head.split()[1] == name]


@pytest.fixture(params=[False, True], ids=["kernel", "guard"])
def run(request: pytest.FixtureRequest) -> Run:
    if sys.platform != "linux" and not request.param:
        pytest.skip("PR_SET_PDEATHSIG is Linux's")
    return Run(guarded=request.param)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A supervisor that does not end must fail its test, not the whole run."""
    watchdog = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))
    watchdog.start()
    yield
    watchdog.cancel()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return sys.platform == "linux"


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)


def test_it_starts_a_stage_only_when_the_one_before_is_ready(run: Run, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    first = f"import time; time.sleep(0.2); open({str(mark)!r}, 'w').close(); time.sleep(600)"
    second = f"import os, time; print(os.path.exists({str(mark)!r}), flush=True); time.sleep(600)"
    code = run(
        [service("first", first, probe=mark.exists)],
        [service("second", second, probe=lambda: bool(run.said("second")))],
    )
    assert code == 130
    assert run.said("second")[0] == "True"


def test_it_ends_the_services_in_the_reverse_order(run: Run) -> None:
    code = run(
        [service("one", STAYS), service("two", STAYS)],
        [service("three", STAYS, probe=lambda: bool(run.said("three")))],
    )
    stopping = [line.split()[1] for line in run.lines if line.endswith("| stopping")]
    assert code == 130
    assert stopping == ["three", "two", "one"]


def test_it_prefixes_every_line_with_time_and_name(run: Run) -> None:
    talks = "print('first'); print('second', end='', flush=True); import time; time.sleep(600)"
    run([service("long-name", STAYS), service("x", talks, probe=lambda: bool(run.said("x")))])
    line = next(line for line in run.lines if line.endswith("| first"))
    assert line[2] == line[5] == ":"
    assert line[8:] == " x         | first"
    assert "second" in run.said("x"), "a last line without its end is not lost"


def test_it_runs_a_one_shot_to_its_end_and_once(run: Run) -> None:
    code = run([service("once", "print('done')", one_shot=True)], [service("web", STAYS)])
    assert code == 130
    assert run.said("once") == ["done"]


def test_it_stops_all_with_the_code_of_a_one_shot_that_fails(run: Run) -> None:
    code = run(
        [service("before", STAYS)],
        [service("once", "raise SystemExit(9)", one_shot=True)],
        [service("web", STAYS)],
    )
    assert code == 9
    assert run.said("web") == []
    assert run.said("before")[-1] == "stopping"


def test_it_starts_a_child_again_that_dies(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "pids"
    code = f"""
        import os, time
        with open({str(log)!r}, "a") as file: file.write(f"{{os.getpid()}}\\n")
        time.sleep(600)
    """

    def pids() -> list[int]:
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def kill_and_wait() -> None:
        def then() -> None:
            wait_until(lambda: len(pids()) == 1)
            os.kill(pids()[0], signal.SIGKILL)
            wait_until(lambda: len(pids()) == 2)
            run.interrupt()

        threading.Thread(target=then).start()

    run.on_ready = kill_and_wait
    assert run([service("web", code)]) == 130
    assert any("ended with code 137: starting it again" in line for line in run.said("web"))
    assert all(is_gone(pid) for pid in pids())


def test_it_stops_all_with_the_code_of_a_child_that_keeps_dying(run: Run) -> None:
    run.on_ready = lambda: None
    code = run([service("steady", STAYS)], [service("loop", "raise SystemExit(7)")])
    assert code == 7
    assert run.said("loop").count("ended with code 7: stopping all") == 1
    assert sum("starting it again" in line for line in run.said("loop")) == QUICK.budget
    assert run.said("steady")[-1] == "stopping"


def test_it_takes_a_clean_exit_for_a_death_too(run: Run) -> None:
    run.on_ready = lambda: None
    assert run([service("quits", "pass")]) == 1


def test_it_does_not_try_again_what_refused_its_settings(run: Run) -> None:
    run.on_ready = lambda: None
    assert run([service("steady", STAYS)], [service("bad", "raise SystemExit(2)")]) == 2
    assert not any("starting it again" in line for line in run.said("bad"))
    assert run.said("steady")[-1] == "stopping"


def test_it_takes_a_probe_that_fails_for_not_ready(run: Run) -> None:
    looks: list[None] = []

    def fails_twice() -> bool:
        looks.append(None)
        if len(looks) < 3:
            raise ConnectionResetError("stale")
        return True

    assert run([service("tasks", STAYS, probe=fails_twice)]) == 130
    told = "not ready: its probe failed: ConnectionResetError: stale"
    assert run.said("tasks").count(told) == 1
    assert "ready" in run.said("tasks")


def test_it_goes_on_when_the_last_look_fails(run: Run) -> None:
    looks: list[None] = []

    def settled() -> bool:
        looks.append(None)
        if len(looks) < 3:
            raise RuntimeError("not yet")
        return True

    run.settled = settled
    assert run([service("web", STAYS)]) == 130
    assert run.said("serve") == ["not ready: its probe failed: RuntimeError: not yet"]


def test_it_gives_up_on_what_cannot_be_started(run: Run) -> None:
    run.on_ready = lambda: None
    missing = Service(name="gone", command=["/no/such/program"], environment=dict(os.environ))
    code = run([service("steady", STAYS)], [missing])
    assert code == (1 if run.guarded else 126), "the guard starts, and dies of it"
    assert run.said("steady")[-1] == "stopping"


def test_it_replaces_a_child_that_is_never_ready(run: Run) -> None:
    assert run([service("mute", STAYS, probe=lambda: False, ready_within=0.2)]) == 137
    assert "killed: not ready within 0 s" in run.said("mute")


DEAF = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('deaf', flush=True)
    time.sleep(600)
"""


def test_it_kills_what_does_not_end_within_its_grace(run: Run) -> None:
    code = run([service("deaf", DEAF, grace=0.3, probe=lambda: bool(run.said("deaf")))])
    assert code == 130
    assert "killed: it did not end in time" in run.said("deaf")


def test_it_skips_the_grace_on_a_second_interrupt(run: Run) -> None:
    def twice() -> None:
        run.interrupt()

        def again() -> None:
            wait_until(lambda: "stopping" in run.said("deaf"))
            run.interrupt()

        threading.Thread(target=again).start()

    run.on_ready = twice
    began = time.monotonic()
    code = run([service("deaf", DEAF, grace=50, probe=lambda: bool(run.said("deaf")))])
    assert code == 130
    assert time.monotonic() - began < 30


def test_it_leaves_no_grandchild_behind(run: Run) -> None:
    code = """
        import subprocess, sys, time
        quiet = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); time.sleep(600)"
        print(subprocess.Popen([sys.executable, "-I", "-S", "-c", quiet]).pid, flush=True)
        time.sleep(600)
    """
    run([service("parent", code, probe=lambda: bool(run.said("parent")))])
    grandchild = int(run.said("parent")[0])
    wait_until(lambda: is_gone(grandchild))


def test_it_goes_on_when_a_child_closes_its_output(run: Run) -> None:
    code = "import os, time; os.close(1); os.close(2); time.sleep(600)"
    run.on_ready = lambda: threading.Timer(0.3, run.interrupt).start() or None
    assert run([service("silent", code)]) == 130
    assert run.said("silent") == ["ready", "stopping"]


def test_it_leaves_no_process_when_it_is_killed_itself(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "pids"
    child = f"""
        import os, time
        with open({str(log)!r}, "a") as file: file.write(f"{{os.getpid()}}\\n")
        time.sleep(600)
    """
    script = f"""
        import os, sys
        sys.path.insert(0, {str(Path("platform").resolve())!r})
        from haltline.child import Lifeline
        from haltline.supervisor import Supervisor
        from haltline.unit import Service
        command = [sys.executable, "-I", "-S", "-c", {textwrap.dedent(child)!r}]
        services = [Service(name=name, command=command, environment=os.environ) for name in "ab"]
        lifeline = Lifeline(guarded={run.guarded})
        Supervisor([services], write=print, on_ready=lambda: None, lifeline=lifeline).run()
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
    supervisor.kill()
    supervisor.wait()
    for pid in map(int, log.read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


def test_it_stops_in_order_when_its_reader_goes_away() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError(line)

    supervisor = Supervisor(
        [[service("web", STAYS)]],
        write=broken,
        on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert supervisor.run() == 143


def test_the_pause_doubles_up_to_its_limit() -> None:
    policy = RestartPolicy()
    assert [policy.pause(deaths) for deaths in (1, 2, 3, 6, 7, 20)] == [0.1, 0.2, 0.4, 3.2, 5, 5]
