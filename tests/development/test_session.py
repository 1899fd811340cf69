"""Parts of `enodedev` started, watched and ended: here they are small scripts."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from django.utils import autoreload

from enode_django.development import session
from enode_django.development.lines import Lines
from enode_django.development.parts import Plan
from enode_django.development.session import Development
from enode_django.equeue import stops

SOON = 60.0
WAITS = "import signal, sys; print('up', flush=True); signal.sigwait([signal.SIGTERM]); print('down', flush=True)"
BLOCKED = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); {WAITS}"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


class Stage:
    """Runs a session in the test's thread; ``on`` says what happens when a line has been shown."""

    def __init__(self, steps: socket.socket) -> None:
        self._steps = steps
        self.shown: list[str] = []
        self.reactions: dict[str, Callable[[], object]] = {}

    def run(self, *plans: Plan, grace: float = SOON, is_ready: Callable[[], bool] = lambda: True) -> int:
        lines = Lines(coloured=False)
        self.development = Development(
            plans, steps=self._steps, environment={}, grace=grace, lines=lines, write=self._write
        )
        return self.development.run(is_ready)

    def _write(self, line: str) -> None:
        text = " ".join(line.split()[1:])
        self.shown.append(text)
        reaction = self.reactions.pop(text, None)
        if reaction is not None:
            reaction()

    def shows(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.shown

    def stop(self) -> None:
        self.development.stop()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as steps:
        steps.bind(str(tmp_path / "steps"))
        yield Stage(steps)


def plan(name: str, script: str, patience: float = 0.0) -> Plan:
    return Plan(name, [sys.executable, "-c", script], patience)


def positions(shown: Sequence[str], *wanted: str) -> list[int]:
    return [shown.index(text) for text in wanted]


def test_what_others_need_ends_after_them(stage: Stage) -> None:
    stage.reactions["web up"] = stage.stop
    plans = plan("broker", BLOCKED, patience=SOON), plan("web", BLOCKED)
    assert stage.run(*plans, is_ready=stage.shows("broker up")) == 0
    order = positions(stage.shown, "enodedev ending; a second Ctrl-C kills", "web down", "broker down")
    assert order == sorted(order)


def test_the_others_end_together(stage: Stage, tmp_path: Path) -> None:
    """Each process ends only when both were told to end."""
    stage.reactions["web up"] = stage.stop
    scripts = [
        f"{BLOCKED}; import pathlib, time; ours, other = map(pathlib.Path({str(tmp_path)!r}).joinpath, {names!r})\n"
        "ours.touch()\nwhile not other.exists(): time.sleep(0.01)"
        for names in (("a", "b"), ("b", "a"))
    ]
    plans = plan("processors", scripts[0]), plan("web", scripts[1])
    assert stage.run(*plans, is_ready=stage.shows("processors up")) == 0
    assert {"web down", "processors down"} <= {*stage.shown}


def test_the_first_part_has_to_be_ready_before_the_others_start(stage: Stage) -> None:
    stage.reactions["web up"] = stage.stop
    assert stage.run(plan("broker", BLOCKED), plan("web", BLOCKED), is_ready=stage.shows("broker up")) == 0
    assert stage.shown.index("broker up") < stage.shown.index("web up")


def test_a_part_that_cannot_start_ends_everything(stage: Stage) -> None:
    fails = plan("web", "print('that port is in use'); raise SystemExit(3)")
    assert stage.run(plan("broker", BLOCKED), fails, is_ready=stage.shows("broker up")) == 1
    why = "web ended with status 3 at its start, for the reason above; ending everything"
    found = positions(stage.shown, "web that port is in use", f"enodedev {why}", "broker down")
    assert found == sorted(found)


def test_a_part_that_dies_later_is_started_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SETTLED", 0.0)
    stage.reactions["enodedev web ended with status 4; starting it again"] = lambda: stage.reactions.update(
        {"web up": stage.stop}
    )
    assert stage.run(plan("web", "print('up'); raise SystemExit(4)")) in (0, 1)
    assert stage.shown.count("web up") >= 2


def test_a_part_that_does_not_settle_waits_for_code_to_change(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, starts = tmp_path / "edited.py", tmp_path / "starts"
    module.touch()
    monkeypatch.setattr(autoreload, "iter_all_python_module_files", lambda: [module])
    monkeypatch.setattr(session, "RETRY", 600.0)
    monkeypatch.setattr(session, "SETTLED", 0.0)
    waits = "enodedev web ended with status 1; starting it again when code changes, or in 600 s"

    def never_settle_again() -> None:
        monkeypatch.setattr(session, "SETTLED", 600.0)

    def edit() -> None:
        os.utime(module, (2e9, 2e9))
        stage.reactions[waits] = stage.stop

    stage.reactions["enodedev web ended with status 1; starting it again"] = never_settle_again
    stage.reactions[waits] = edit
    script = f"print('tried'); open({str(starts)!r}, 'a').write('x'); raise SystemExit(1)"
    stage.run(plan("web", script))
    assert starts.read_text() == "xxx"


class Vanishing(type(Path())):  # type: ignore[misc]
    """Was there when it was asked, and is not when it is looked at."""

    def exists(self) -> bool:
        return True


def test_what_does_not_end_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BEYOND_GRACE", 0.0)
    stage.reactions["web up"] = stage.stop
    assert stage.run(plan("web", DEAF), grace=0.2) == 1
    assert "enodedev web has not ended; killing it" in stage.shown


def test_a_second_signal_kills_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "AS_ONE", 0.0)
    stage.reactions["web up"] = stage.stop
    stage.reactions["enodedev ending; a second Ctrl-C kills"] = stage.stop
    begun = time.monotonic()
    assert stage.run(plan("web", DEAF), grace=600.0) == 1
    assert time.monotonic() - begun < SOON


def test_signals_that_come_together_are_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "AS_ONE", 600.0)
    stage.reactions["web up"] = stage.stop
    stage.reactions["enodedev ending; a second Ctrl-C kills"] = stage.stop
    assert stage.run(plan("web", BLOCKED)) == 0
    assert "web down" in stage.shown


def test_code_that_is_being_replaced_does_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "there.py"
    there.touch()
    os.utime(there, (5.0, 5.0))
    monkeypatch.setattr(autoreload, "iter_all_python_module_files", lambda: [there, Vanishing(tmp_path / "gone.py")])
    assert session.newest_code() == 5.0


def test_steps_that_arrive_are_shown_and_others_passed_over(stage: Stage, tmp_path: Path) -> None:
    step = '[1.5,"command","order-1","c","bank.Deposit","ada",2,"bank.Deposited",0.001]'
    sends = f"""
import socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
    for body in (b"nonsense", {step!r}.encode()):
        out.sendto(body, {str(tmp_path / "steps")!r})
"""
    stage.reactions["command order-1 bank.Deposit ada v2 1.0 ms bank.Deposited"] = stage.stop
    assert stage.run(plan("web", sends + BLOCKED)) == 0
