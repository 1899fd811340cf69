"""A broker waits for one whose supervisor was killed: that one serves the workers until they have ended."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Timer

import pytest

from enode_django.equeue.files import DirectoryLock
from enode_django.exceptions import DirectoryInUse
from enode_django.processors.broker import when_free
from sample_project.embedded_process import free_port, release_port
from tests import warm
from tests.meta.tree import ROOT


def taken(directory: Path) -> int:
    DirectoryLock(directory).release()
    return 7


def test_a_directory_is_waited_for_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    earlier = DirectoryLock(tmp_path)
    Timer(0.3, earlier.release).start()
    with caplog.at_level(logging.WARNING):
        assert when_free(lambda: taken(tmp_path), 30) == 7
    (line,) = caplog.messages
    assert "is used by process" in line
    assert "waiting for up to 30 s" in line


def test_a_directory_that_stays_in_use_is_an_error(tmp_path: Path) -> None:
    DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse):
        when_free(lambda: taken(tmp_path), 0.1)


def test_a_free_directory_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert when_free(lambda: taken(tmp_path), 0) == 7
    assert not caplog.messages


RUN = """
import signal, sys
from contextlib import ExitStack
from django.core.management import execute_from_command_line

def stop(frame, event, argument):
    if event == "call" and frame.f_code is ExitStack._push_cm_exit.__code__:
        if getattr(frame.f_locals["cm"], "gen", None) is not None and frame.f_locals["cm"].gen.__name__ == "_broker":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

sys.setprofile(stop)
execute_from_command_line(["manage.py", "runprocessors", "--with-broker", "--skip-checks"])
"""


def test_a_signal_stops_a_broker_that_has_just_become_ready(tmp_path: Path) -> None:
    """It comes before the command has entered the context that the broker runs in."""
    location = f"tcp://127.0.0.1:{(port := free_port())}"
    enode = {"QUEUE": {"LOCATION": location}, "BROKER": {"LISTEN": location, "DIRECTORY": str(tmp_path / "broker")}}
    (tmp_path / "own_settings.py").write_text(f"from sample_project.settings import *\nENODE = {enode!r}\n")
    own = {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "own_settings"}
    try:
        done = warm.run(["-c", RUN], cwd=ROOT, env={**os.environ, **own}, seconds=60)
    finally:
        release_port(port)
    assert f"the broker listens on {location}" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    assert "stopping" in done.stderr
