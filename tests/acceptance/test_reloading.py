from __future__ import annotations

import os
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django import CommandStatus
from enode_django.ids import new_id
from sample_project.bank.domain import OpenAccount
from tests.acceptance.newer.commands import PayInterest
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

APP = "edited_app"
HANDLER = """
from enode_django import command_handler
from sample_project.bank.domain import BankAccount, Deposit
from tests.acceptance.newer.commands import PayInterest

@command_handler
def pay_interest(command: PayInterest, context):
    context.get(BankAccount).deposit(Deposit(command.aggregate_root_id, amount=command.amount))
    context.set_result({edition!r})
"""


class EditedApp:
    def __init__(self, directory: Path) -> None:
        self._module = directory / APP / "command_handlers.py"
        self._module.parent.mkdir()
        (self._module.parent / "__init__.py").touch()
        self._saved = 1_000_000_000
        self.edit("first")

    def edit(self, edition: str) -> None:
        """Save other code. Its time of change advances by seconds, so every change is noticed."""
        self._module.write_text(HANDLER.format(edition=edition))
        self._saved += 10
        os.utime(self._module, (self._saved, self._saved))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EditedApp:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return EditedApp(tmp_path)


def interest(stack: Stack, account: str) -> tuple[CommandStatus, object]:
    answer = stack.client.execute(PayInterest(account, amount=Decimal(1)))
    assert answer is not None
    return answer.status, answer.value


def test_edited_code_is_in_force_and_commands_go_on(stack: Stack, seed: int, app: EditedApp) -> None:
    account = new_id()
    first = stack.start_ready(1, "--reload", role="all", apps=APP)
    with stack.load(seed):
        stack.client.execute(OpenAccount(account, owner="somebody"))
        assert interest(stack, account) == (CommandStatus.SUCCESS, "first")
        app.edit("second")
        first.wait_for("command_handlers.py changed, reloading")
        wait_until(lambda: len(first.workers()) == 2, "a worker with the edited code")
        wait_until(lambda: len(first.event_workers()) == 2, "an event worker with the edited code")
        first.wait_owning(list(first.workers())[1])
        assert interest(stack, account) == (CommandStatus.SUCCESS, "second")
    stack.check()
    first.signal(signal.SIGTERM)
    first.wait_gone()
    second = stack.start_ready(1, "--reload", role="all", apps=APP)
    stack.check(loaded=False)
    second.signal_group(signal.SIGINT)  # as Ctrl-C does
    second.wait_gone()
    assert "Traceback" not in first.log + second.log
