"""SIGTERM in a process of Celery's pool while it runs a job: the job ends, and its row records it.

Celery sends SIGTERM to such a process when a task is revoked and when the worker shuts down quickly, up to twice within
milliseconds. By default it raises `SystemExit` at any point. At the beginning or the end of a job, that would leave a
row that counts as running until its lease runs out.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from enode_django.concurrency.threads import start_thread
from enode_django.exceptions import JobCancelled
from enode_django.jobs.running import RunningJob

PATIENCE = 60.0
"""Seconds in which the work has to stop after SIGTERM. After that, the signal has its default effect."""


class ProcessTerminated(JobCancelled):
    """The pool's process was told to end: its task was revoked, or its worker shuts down."""


class Termination:
    """A context manager in which SIGTERM stops the job that the block runs. A signal that did not end the block with
    `ProcessTerminated` has its default effect at the end of the block, so none is lost. Does nothing unless ``in_pool``
    (in a process of Celery's pool) and in the main thread."""

    def __init__(self, *, in_pool: bool) -> None:
        self._is_ours = in_pool and threading.current_thread() is threading.main_thread()
        self._job: RunningJob | None = None
        self._heard = 0
        self._is_over = threading.Event()
        self._is_late = False
        self._is_interrupted = False

    def __enter__(self) -> Self:
        if self._is_ours:
            self._default = signal.signal(signal.SIGTERM, self._hear)
        return self

    @contextmanager
    def stops(self, job: RunningJob) -> Iterator[None]:
        """Let SIGTERM stop this job, whose work is the block. Raises `ProcessTerminated` if the signal came before."""
        job.on_stop(self._limit)
        self._job = job
        if self._heard:
            self._stop(job)
            job.check()
        try:
            yield
        finally:
            self._is_over.set()  # nothing interrupts writing the end of the job

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._is_ours or self._is_interrupted:
            return
        signal.signal(signal.SIGTERM, self._default)
        if self._heard > isinstance(error, ProcessTerminated):
            signal.raise_signal(signal.SIGTERM)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        if self._is_late and not self._is_over.is_set():
            self._is_interrupted = True
            signal.signal(signal.SIGTERM, self._default)
            signal.raise_signal(signal.SIGTERM)
        elif self._job is not None:
            self._stop(self._job)

    def _stop(self, job: RunningJob) -> None:
        job.stop(ProcessTerminated(f"job {job.id} was cancelled: its process was told to end"))

    def _limit(self) -> None:
        if self._heard:
            start_thread("job-termination", self._end_it)

    def _end_it(self) -> None:
        if not self._is_over.wait(PATIENCE):
            self._is_late = True
            os.kill(os.getpid(), signal.SIGTERM)
