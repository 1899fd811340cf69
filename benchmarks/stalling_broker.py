"""A broker that measures how late its event loop is: ``python -m benchmarks.stalling_broker SAMPLES DIRECTORY``.

It prints its location when it takes connections. SIGUSR1 ends the measurement, before the checkpoint that a broker
writes at its end. After SIGTERM the file SAMPLES holds, as JSON and in milliseconds, the delay of each tick of the loop
(``late``), the processor time of the loop's thread since the previous tick (``worked``), the time that the thread
waited for a core (``robbed``; 0 if the kernel does not report it), and the longest turns of the loop (``turns``, see
`benchmarks.turns`).

Without DIRECTORY it runs no broker: an idle loop shows the delays of the machine itself. The measurement is inside the
process, because a client would also measure its own delays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.turns import WatchedLoop, WatchedLoops, without_core
from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.server import run

TICK = 0.001
DAY = 86_400.0


class Ticker:
    """A task that the loop should run every millisecond, like the request of a client."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {"late": [], "worked": [], "robbed": []}
        self.turns: list[dict[str, Any]] = []

    def start(self, location: str = "") -> asyncio.Task[None]:
        """Print the location of the broker, and measure until SIGUSR1."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WatchedLoop)
        loop.call_soon(loop.turns.forget)  # without the start
        task = loop.create_task(self._tick())

        def end() -> None:
            self.turns = loop.turns.plain()
            task.cancel()

        loop.add_signal_handler(signal.SIGUSR1, end)
        print(location, flush=True)
        return task

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        late, worked, robbed = self.samples.values()
        while True:
            waiting, work = without_core(), time.thread_time()
            due = loop.time() + TICK  # last, so that the time of the calls before does not count as late
            await asyncio.sleep(TICK)
            late.append(1e3 * max(0.0, loop.time() - due))
            worked.append(1e3 * (time.thread_time() - work))
            robbed.append(1e3 * (without_core() - waiting))


async def _idle(ticker: Ticker) -> int:
    with contextlib.suppress(asyncio.CancelledError):
        await ticker.start()
    return 0


def main() -> int:
    samples, *directory = map(Path, sys.argv[1:])
    ticker = Ticker()
    asyncio.set_event_loop_policy(WatchedLoops())
    status = _serve(ticker, *directory) if directory else asyncio.run(_idle(ticker))
    samples.write_text(json.dumps({**ticker.samples, "turns": ticker.turns}))
    return status


def _serve(ticker: Ticker, directory: Path) -> int:
    options = BrokerOptions(
        directory=directory,
        listen="tcp://127.0.0.1:0",
        retention=Retention(max_age=3 * DAY),
        retention_interval=1.0,
    )
    return run(options, ticker.start)


if __name__ == "__main__":
    sys.exit(main())
