"""The outer process of ``runprocessors --reload``: here the inner one is a small script."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.utils import autoreload

from enode_django.equeue import stops
from enode_django.processors import reloading
from enode_django.processors.reloading import CHANGED, run_reloading

DRAINS = """
import pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
pathlib.Path({log!r}).open("a").write("started ")
signal.sigwait([signal.SIGTERM])
pathlib.Path({log!r}).open("a").write("drained ")
sys.exit(7)
"""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({log!r}).open("a").write("started ")
time.sleep(600)
"""
CHANGES_ONCE = f"""
import os, pathlib, sys
path = pathlib.Path({{log!r}})
path.open("a").write("started ")
sys.exit({CHANGED} if path.read_text() == "started " else 5)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def run(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs a script as the inner process, and calls something again and again once it has started."""
    monkeypatch.setattr(reloading, "TICK", 0.05)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def begin(script: str, when_up: Callable[[], object] = lambda: None) -> int:
        command = [sys.executable, "-c", script.format(log=str(log))]
        monkeypatch.setattr(autoreload, "get_child_arguments", lambda: command)

        def look() -> None:
            if "started" in log.read_text():
                when_up()

        return run_reloading(lambda: None, look, lambda: None)

    yield begin
    for number, handler in before.items():
        signal.signal(number, handler)


def once(*numbers: int) -> Callable[[], object]:
    left = [*numbers]

    def send() -> None:
        while left:
            os.kill(os.getpid(), left.pop())

    return send


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_outer_process_ends_after_the_inner_one_has_drained(
    run: Callable[..., int], log: Path, number: int
) -> None:
    assert run(DRAINS, once(number)) == 7
    assert log.read_text() == "started drained "


def test_signals_that_come_together_are_one(
    run: Callable[..., int], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AS_ONE", 600.0)
    assert run(DRAINS, once(signal.SIGTERM, signal.SIGTERM, signal.SIGINT)) == 7
    assert log.read_text() == "started drained "


def test_a_second_signal_kills(run: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "AS_ONE", 0.0)
    assert run(DEAF, lambda: os.kill(os.getpid(), signal.SIGTERM)) == -signal.SIGKILL


def test_the_inner_process_is_started_anew_when_code_has_changed(run: Callable[..., int], log: Path) -> None:
    assert run(CHANGES_ONCE) == 5
    assert log.read_text() == "started started "
