"""The deadlines that a process manager sets and cancels: it yields them, as it yields commands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from enode_django.domain.messages import Command
from enode_django.exceptions import DefinitionError, InvalidField, InvalidId, shown
from enode_django.ids import check_id
from enode_django.scheduling.due import due_of


@dataclass(frozen=True, slots=True)
class Deadline:
    """A command that a process manager yields to be sent later: ``at`` a datetime with a time zone, or ``after`` a
    duration from the event (a timedelta, or seconds).

    It is known by its ``name`` within the aggregate of the event, or within the process of a process manager with a
    state. Another one with that name replaces it, and `CancelDeadline` cancels it. Raises `InvalidField` for another
    time or name.

    For example::

        class Reservations(ProcessManager):
            name = "bank.expiring"

            @handles
            def started(self, event: TransferStarted) -> Iterator[Command | Deadline]:
                cancel = CancelTransfer(event.aggregate_root_id, reason="It took too long.")
                yield Deadline("confirmed", cancel, after=timedelta(minutes=10))
    """

    name: str
    command: Command
    at: datetime | None = None
    after: timedelta | float | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.command, Command):
            raise DefinitionError(f"Deadline({self.name!r}, …) takes a command, got {shown(self.command)}")
        due_of(self.at, self.after)


@dataclass(frozen=True, slots=True)
class CancelDeadline:
    """The cancellation of the deadline of this name, of the event's aggregate or process; a process manager yields it.
    If there is none, or its command was sent already, nothing happens. Raises `InvalidField` for another name.

    For example::

        class Confirmations(ProcessManager):
            name = "bank.confirming"

            @handles
            def completed(self, event: TransferCompleted) -> Iterator[Command | CancelDeadline]:
                yield CancelDeadline("confirmed")
    """

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)


def _check_name(name: object) -> None:
    try:
        check_id(name, "the deadline's name")
    except InvalidId as error:
        raise InvalidField(str(error)) from None
