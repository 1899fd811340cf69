from __future__ import annotations

import importlib.util
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
