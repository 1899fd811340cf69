"""Processes that send the movements."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import NamedTuple

from sample_project.bank.demo.workload import Workload

START_SECONDS = 120.0
END_SECONDS = 5.0


class Progress(NamedTuple):
    """The number of messages that a producer has sent; ``error`` is the reason if it had to stop."""

    sent: int
    error: str = ""


def produce(workload: Workload, number: int, owner: Connection) -> None:
    """Run a producer: report readiness, wait for the start, send. It ends with its owner."""
    import django

    django.setup()
    try:
        owner.send(Progress(0))
        owner.recv()
        _send_all(workload, number, owner)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _send_all(workload: Workload, number: int, owner: Connection) -> None:
    from enode_django import send_commands
    from enode_django.exceptions import EnodeError

    sent = 0
    try:
        for batch in workload.batches(number):
            send_commands(batch)
            sent += len(batch)
            owner.send(Progress(sent))
    except EnodeError as error:
        owner.send(Progress(sent, f"producer {number} had to stop: {error}"))


class ProducerFailed(Exception):
    pass


class Producers:
    """The producer processes. ``with`` starts and ends them; they wait for `start`. For the main thread only."""

    def __init__(self, workload: Workload) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        self.sent = [0] * workload.producers
        for number in range(workload.producers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=produce, args=(workload, number, theirs), name=f"producer-{number}", daemon=True
            )
            self._connections.append(ours)
            self._processes.append((process, theirs))

    def __enter__(self) -> Producers:
        try:
            self._start_processes()
        except BaseException:  # Ctrl-C, too
            self.__exit__()
            raise
        return self

    def _start_processes(self) -> None:
        resource_tracker.ensure_running()  # else starting a process does it, and unblocks the signal on the way
        # Children inherit blocked signals, and Ctrl-C reaches the whole process group. This process gets it afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process, theirs in self._processes:
                process.start()
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(self, *exception: object) -> None:
        for connection in self._connections:
            connection.close()
        for process, _ in self._processes:
            if process.pid is not None:
                process.terminate()
                process.join(END_SECONDS)

    def start(self) -> None:
        """Block until every producer is ready, and start all at once."""
        for number, connection in enumerate(self._connections):
            if not connection.poll(START_SECONDS):
                raise ProducerFailed(f"producer {number} was not ready within {START_SECONDS:g} s")
            self._hear(number, connection)
        for connection in self._connections:
            connection.send("start")

    def look(self) -> bool:
        """Update ``sent``, and return True if all producers have ended. Raises `ProducerFailed`."""
        running = [process.is_alive() for process, _ in self._processes]
        for number, connection in enumerate(self._connections):
            while connection.poll() and self._hear(number, connection):
                pass
        for number, (process, _) in enumerate(self._processes):
            if not running[number] and process.exitcode:
                raise ProducerFailed(f"producer {number} ended with status {process.exitcode}")
        return not any(running)

    def _hear(self, number: int, connection: Connection) -> bool:
        try:
            progress: Progress = connection.recv()
        except (EOFError, ConnectionResetError):
            return False
        if progress.error:
            raise ProducerFailed(progress.error)
        self.sent[number] = progress.sent
        return True
