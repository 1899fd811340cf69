from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.context import ForkServerContext, SpawnContext

import pytest

from enode_django.processes.children import (
    LONGEST_DIRECTORY,
    PRELOADED,
    STOP_SIGNALS,
    children_context,
    stop_signals_blocked,
)
from tests import warm
from tests.meta.tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

LOADS = f"""
import importlib, sys, threading
for name in {PRELOADED!r}:
    importlib.import_module(name)
from django.apps import apps
from django.conf import settings
from django.db import connections
assert not settings.configured, "settings were looked at"
assert not apps.ready, "applications were loaded"
assert threading.active_count() == 1, threading.enumerate()
assert "enode_django.models" not in sys.modules
"""


def test_what_is_loaded_before_a_fork_exists_and_starts_nothing() -> None:
    assert all(map(importlib.util.find_spec, PRELOADED))
    subprocess.run([sys.executable, "-c", LOADS], check=True, env={})


def test_signals_that_were_blocked_before_the_start_of_a_process_stay_blocked() -> None:
    with stop_signals_blocked():
        with stop_signals_blocked():
            pass
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= STOP_SIGNALS


@pytest.mark.parametrize("options", [{"processes": 0}, {"listen": "nowhere"}], ids=["runprocessors", "runbroker"])
def test_a_command_gets_the_signals_that_its_parent_ignored_or_blocked(
    request: pytest.FixtureRequest, options: dict[str, object]
) -> None:
    """It ends at once, since these options are refused. What a parent ignores or blocks, a child inherits."""
    code = f"""if True:
        import signal
        from django import setup
        from django.core.management import CommandError, call_command

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
        setup()
        try:
            call_command({request.node.callspec.id!r}, skip_checks=True, verbosity=0, **{options!r})
        except CommandError as error:
            print(error)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print(signal.getsignal(signal.SIGCHLD).name, *(one.name for one in blocked))
    """
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    done = warm.run(["-c", code], cwd=ROOT, env=environment)
    assert done.stdout.splitlines()[-1:] == ["SIG_DFL SIGUSR1"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("directory", "kind"), [("/var/tmp", ForkServerContext), ("/" + "x" * LONGEST_DIRECTORY, SpawnContext)]
)
def test_where_a_socket_has_no_room_nothing_is_forked(
    monkeypatch: pytest.MonkeyPatch, directory: str, kind: type[object]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", directory)
    assert isinstance(children_context(), kind)


def test_without_a_directory_that_can_be_written_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    assert isinstance(children_context(), SpawnContext)
