"""A broker that measures how late its event loop is: ``python -m benchmarks.stalling_broker DIRECTORY SAMPLES``.

It prints its location when it takes connections. SIGUSR1 ends the measurement: nobody waits for the checkpoint that a
broker writes at its end. After SIGTERM the file SAMPLES has, as JSON and in milliseconds, how
late each tick of the loop came (``late``), what processor time the loop's thread took since the tick before
(``worked``), and for how long it could have run and got no core (``robbed``; 0 where the kernel does not tell).

It is measured inside, since a client beside it would measure how late the client is, too.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.server import run

TICK = 0.001
DAY = 86_400.0


class Ticker:
    """Asks the loop to be called each millisecond, as somebody whose request comes then."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {"late": [], "worked": [], "robbed": []}
        self._task: asyncio.Task[None] | None = None

    def start(self, location: str) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._tick())
        loop.add_signal_handler(signal.SIGUSR1, self._task.cancel)
        print(location, flush=True)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        late, worked, robbed = self.samples.values()
        while True:
            due, work, waiting = loop.time() + TICK, time.thread_time(), _without_core()
            await asyncio.sleep(TICK)
            late.append(1e3 * max(0.0, loop.time() - due))
            worked.append(1e3 * (time.thread_time() - work))
            robbed.append(1e3 * (_without_core() - waiting))


def _without_core() -> float:
    """Return the seconds that this thread has waited for a core since it began."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def main() -> int:
    directory, samples = map(Path, sys.argv[1:])
    ticker = Ticker()
    options = BrokerOptions(
        directory=directory,
        listen="tcp://127.0.0.1:0",
        retention=Retention(max_age=3 * DAY),
        retention_interval=1.0,
    )
    status = run(options, ticker.start)
    samples.write_text(json.dumps(ticker.samples))
    return status


if __name__ == "__main__":
    sys.exit(main())
