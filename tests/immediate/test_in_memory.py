"""A script with neither settings nor a database, run as somebody's first steps are."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

from enode_django import send_command
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import Appended, Part, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.positions import Position
from enode_django.immediate import IN_MEMORY
from enode_django.immediate.bus import ImmediateCommandBus
from enode_django.immediate.memory import MemorySubscribers
from enode_django.runtime import use_bus
from tests import warm
from tests.docs.test_code_blocks import screen
from tests.immediate.domain import Behaviour, Fill, mails
from tests.meta.tree import ROOT

SCRIPT = """
from decimal import Decimal

from enode_django import *

class OpenAccount(Command): owner: str
class Withdraw(Command): amount: Decimal
class Greet(Command): pass
class AccountOpened(DomainEvent): owner: str
class Withdrawn(DomainEvent): balance: Decimal
class Greeted(DomainEvent): pass
class InsufficientFunds(DomainException): balance: Decimal

class Account(AggregateRoot):
    balance: Decimal = Decimal(100)

    @applies(AccountOpened, Greeted)
    def _ignore(self, event): ...

    @applies(Withdrawn)
    def _withdrawn(self, event): self.balance = event.balance

@command_handler(OpenAccount)
def open_account(command, context):
    account = Account(command.aggregate_root_id)
    account.apply(AccountOpened(owner=command.owner))
    context.add(account)

@command_handler(Withdraw)
def withdraw(command, context):
    account = context.get(Account)
    if command.amount > account.balance:
        raise InsufficientFunds("the balance is too low", balance=account.balance)
    account.apply(Withdrawn(balance=account.balance - command.amount))
    context.set_result(account.balance)

@command_handler(Greet)
def greet(command, context):
    context.get(Account).apply(Greeted())

class Manners(ProcessManager):
    @handles(AccountOpened)
    def opened(self, event):
        yield Greet(aggregate_root_id=event.aggregate_root_id)

owners = {}

@event_handler(AccountOpened, name="owners")
def opened(event): owners[event.aggregate_root_id] = event.owner

away = True

@event_handler(Withdrawn, InsufficientFunds, name="mail")
def mail(message):
    if away:
        raise ConnectionError("the mail server is away")
    print("mail:", type(message).__name__)

execute_command(OpenAccount(aggregate_root_id="ada", owner="Ada"))
print(owners)
result = execute_command(Withdraw(aggregate_root_id="ada", amount=Decimal(30)), wait_for=WaitFor.HANDLED)
print(result.version, result.value, len(result.parked))
away = False
print(execute_command(Withdraw(aggregate_root_id="ada", amount=Decimal(5)), wait_for=WaitFor.HANDLED).parked)
send_command(Withdraw(aggregate_root_id="ada", amount=Decimal(500)))
print(Account.load("ada").balance)
"""


def run(directory: Path, script: str) -> CompletedProcess[str]:
    file = directory / "bank.py"
    file.write_text(script)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "DATABASE"))}
    environment["PYTHONPATH"] = str(ROOT)
    return warm.run([file.name], cwd=directory, env=environment)


def test_all_of_it_runs_in_memory_and_that_is_said_once(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{'ada': 'Ada'}",
        "3 70 1",
        "mail: Withdrawn",
        "mail: Withdrawn",
        "()",
        "mail: InsufficientFunds",
        "65",
    ]
    assert done.stderr.count(IN_MEMORY) == 1
    assert "ConnectionError: the mail server is away" in done.stderr


def test_the_first_screen_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    done = run(tmp_path, screen())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{IN_MEMORY}\n")


class Slow(MemoryEventStore):
    """The first one who asks what is stored hears of what another thread stores meanwhile, if that is possible. The
    first one who stores something goes on when another one has."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.stored, self.both = threading.Event(), threading.Event(), threading.Barrier(2)

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        if not self.asked.is_set():
            self.asked.set()
            self.stored.wait(0.3)
        return super().settled(after, before, limit=limit)

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        appended = super().append(records, doubtful=doubtful)
        self.stored.set()
        self.both.wait(60)
        return appended


def test_event_handlers_miss_nothing_while_two_threads_send_the_first_commands(behaviour: Behaviour) -> None:
    store = Slow()
    bus = ImmediateCommandBus(store, MemorySubscribers)
    with use_bus(bus), subscribers.only(mails()), ThreadPoolExecutor(2) as threads:
        first = threads.submit(send_command, Fill("a"))
        assert store.asked.wait(60)
        second = threads.submit(send_command, Fill("b"))
        first.result(60)
        second.result(60)
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "b", 1)]
