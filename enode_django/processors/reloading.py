"""``runprocessors --reload``: an outer process that restarts an inner one whenever code changes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from django.utils import autoreload

from enode_django.equeue.stops import Stops
from enode_django.processes.children import STOP_SIGNALS

CHANGED = 3
"""The inner process's exit status when code has changed."""
TICK = 0.5


def is_inner() -> bool:
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def run_reloading(
    main: Callable[..., None], on_tick: Callable[[], object], end: Callable[[], object], **options: Any
) -> int:
    """Block until a signal; return the exit status. In the inner process ``main`` runs in a thread of its own, and
    Django's reloader looks for changes. Before that process ends, ``end`` is called, which tells ``main`` to return and
    waits for it. The outer process calls ``on_tick`` twice a second.

    Django's outer process would kill the inner one when it is told to end. This one lets it drain, and ends after it:
    the workers of the inner one may need until their end what only the outer one has. A second signal kills.
    """
    if is_inner():
        try:
            autoreload.run_with_reloader(main, **options)
        finally:
            for number in STOP_SIGNALS:  # no signal may interrupt waiting for the workers
                signal.signal(number, signal.SIG_IGN)
            end()  # otherwise the thread of ``main`` would be cut off before its last report
        return 0
    return _Outer(on_tick).run()


class _Outer:
    def __init__(self, on_tick: Callable[[], object]) -> None:
        self._on_tick = on_tick
        self._stops = Stops()

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self._stops.add())
        status = CHANGED
        while status == CHANGED and not self._stops.count:
            status = self._wait_for(self._start())
        return 0 if status == CHANGED else status

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        return subprocess.Popen(autoreload.get_child_arguments(), env=environment, close_fds=False)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> int:
        told = 0
        while True:
            if self._stops.count > told:
                (process.kill if told else process.terminate)()
                told += 1
            try:
                return process.wait(TICK)
            except subprocess.TimeoutExpired:
                self._on_tick()
