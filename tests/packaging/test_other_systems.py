"""On a system without fork, code that needs no child process runs. A command that needs one names the reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.meta.tree import ROOT

SETTINGS = """
import tests.packaging.elsewhere
import sys, django
from django.conf import settings

APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.postgres", "enode_django"]
settings.configure(
    SECRET_KEY="x",
    INSTALLED_APPS=[*APPS, 'sample_project.bank'],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    SILENCED_SYSTEM_CHECKS=["enode_django.W171"],
    ENODE={"QUEUE": {"BACKEND": "enode_django.equeue.transports.broker.BrokerTransport"}},
)
django.setup()
from django.core.management import CommandError, call_command
"""
CHECKS = f"{SETTINGS}\ncall_command('check')"
TESTS = f"""{SETTINGS}
from decimal import Decimal
from enode_django import send_command
from enode_django.exceptions import TransportUnavailable
from enode_django.testing import given, inline
from sample_project.bank.domain import AccountOpened, BankAccount, Deposit, Deposited, OpenAccount

given(BankAccount, "a", AccountOpened(owner="Ada")).when(Deposit("a", amount=Decimal(1))).then(
    Deposited(amount=Decimal(1), balance=Decimal(1))
)
try:
    send_command(Deposit("a", amount=Decimal(1)))
except TransportUnavailable as error:
    print(error)
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_without_settings_runs() -> None:
    first = re.search(r"```python file=bank.py\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    run(f"import tests.packaging.elsewhere\n{first[1]}")


def test_the_app_is_checked() -> None:
    assert "no issues" in run(CHECKS)


def test_the_tests_of_a_domain_run_and_commands_are_sent() -> None:
    assert "cannot be reached" in run(TESTS)


def test_what_needs_linux_says_so() -> None:
    commands = ["runprocessors", "runbroker", "enodedev"]
    program = f"""{SETTINGS}
from django.core.management import load_command_class

for command in {commands}:
    load_command_class("enode_django", command)
sys.platform = "win32"
for command in {commands}:
    try:
        call_command(command)
    except CommandError as error:
        print(error)
"""
    said = run(program)
    assert [one for one in commands if f"{one} needs Linux, and this is 'win32'" not in said] == []
