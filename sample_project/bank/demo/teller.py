"""A client that waits for answers and measures their latency."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from decimal import Decimal
from typing import NamedTuple

from enode_django import Command, CommandResult, CommandStatus, atry_command, execute_command, try_command
from enode_django.exceptions import EnodeError
from sample_project.bank.demo.workload import Workload
from sample_project.bank.domain import Deposit, OpenAccount

PACE = 0.02
"""Seconds between two commands, whatever the latency: a client that waits for each answer measures good moments
only."""
TIMEOUT = 60.0


class Answer(NamedTuple):
    result: CommandResult
    seconds: float


class Teller:
    """A teller with its own account. ``with`` sends commands during the load; `ask` sends them one by one."""

    def __init__(self, workload: Workload) -> None:
        self.account = f"{workload.run}-teller"
        self.busy: list[Answer] = []
        self.idle: list[Answer] = []
        self.problems: list[str] = []
        self._numbers = itertools.count()
        self._prefix = f"{workload.run}-ask-"
        self._opening = OpenAccount(self.account, id=f"{self._prefix}open", owner="The teller")
        self._stop = threading.Event()
        self._abandon = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask_beside()), name="teller", daemon=True)

    def open(self, timeout: float) -> CommandResult:
        """Open the teller's account. Safe to call again after a `CommandTimeout`."""
        return execute_command(self._opening, timeout=timeout)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Wait for outstanding answers, unless the block failed."""
        if kind is not None:
            self._abandon.set()
        self._stop.set()
        self._thread.join()

    def stop(self) -> None:
        """Stop sending; outstanding answers still arrive. Safe to call twice."""
        self._stop.set()

    def ask(self, times: int) -> None:
        for _ in range(times):
            command, begin = self._next(), time.perf_counter()
            try:
                self._note(self.idle, try_command(command, timeout=TIMEOUT), begin)
            except EnodeError as error:
                self.problems.append(str(error))

    async def _ask_beside(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            tasks.add(asyncio.create_task(self._ask_once(self._next())))
            await asyncio.sleep(PACE)
        while tasks and not self._abandon.is_set():
            _, tasks = await asyncio.wait(tasks, timeout=PACE)
        for task in tasks:
            task.cancel()

    async def _ask_once(self, command: Command) -> None:
        begin = time.perf_counter()
        try:
            self._note(self.busy, await atry_command(command, timeout=TIMEOUT), begin)
        except EnodeError as error:
            self.problems.append(str(error))

    def _next(self) -> Deposit:
        return Deposit(self.account, id=f"{self._prefix}{next(self._numbers):06d}", amount=Decimal(1))

    def _note(self, answers: list[Answer], result: CommandResult, begin: float) -> None:
        answers.append(Answer(result, time.perf_counter() - begin))
        if result.status is not CommandStatus.SUCCESS:
            self.problems.append(f"command {result.command_id} should have been accepted, but got {result}")

    @property
    def results(self) -> list[CommandResult]:
        return [answer.result for answer in self.busy + self.idle]
