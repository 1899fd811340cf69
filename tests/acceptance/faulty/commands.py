"""Named in their bodies, so that a process that has not installed the app can send them, too."""

from __future__ import annotations

from decimal import Decimal

from enode_django import Command


class EndProcess(Command):
    type_name = "faulty.EndProcess"

    status: int = 3


class NeverReturn(Command):
    type_name = "faulty.NeverReturn"


class DepositIfFileExists(Command):
    """The handler deposits if a file exists at ``path``. Otherwise it raises or does nothing."""

    type_name = "faulty.DepositIfFileExists"

    path: str
    amount: Decimal
    otherwise_raise: bool


class DepositUnchecked(Command):
    """Its handler deposits ``amount`` though the domain would refuse it: no column of a balance may hold it."""

    type_name = "faulty.DepositUnchecked"

    amount: Decimal


class DepositWhenFileExists(Command):
    """Its handler does not return before there is a file at ``path``; ``path`` + ".begun" says that it began."""

    type_name = "faulty.DepositWhenFileExists"

    path: str
    amount: Decimal
