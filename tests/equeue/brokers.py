"""Brokers that tests start, signal and kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from enode_django.equeue.transports.broker import BrokerTransport
from sample_project.embedded_process import free_port, release_port
from tests import warm
from tests.meta.tree import ROOT

DEADLINE = 60.0


class RunningBroker:
    """A broker in a separate process. It keeps its port when it is started again: nobody else gets it meanwhile."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.log = directory.with_suffix(".log")
        self._port = free_port()
        self._options = {"directory": str(directory), "listen": f"tcp://127.0.0.1:{self._port}", **options}
        self.location = ""
        self._process: warm.Started | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
        release_port(self._port)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, **options: Any) -> None:
        """Start the broker. Return when it accepts connections."""
        self._options |= options
        command = ["-m", "tests.equeue.broker_process", json.dumps(self._options)]
        with open(self.log, "a") as log:
            self._process = warm.start(command, cwd=ROOT, stderr=log)
        assert self._process.stdout is not None
        self.location = self._process.stdout.readline().strip()
        assert self.location, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        status = self._process.wait(DEADLINE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def stop(self) -> int:
        """Stop the broker by SIGTERM. Return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def transport(self, **options: Any) -> BrokerTransport:
        """Unless the options say otherwise, it waits for as long as a disk that is busy may take for a large send."""
        return BrokerTransport(self.location, **{"timeout": DEADLINE, **options})
