"""Given/when/then tests of a process manager, without a database and a queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventing.deadlines import CancelDeadline, Deadline
from enode_django.eventing.pending import HandledEvents, followed_refusal
from enode_django.eventing.process_managers import ProcessManager, Yielded, with_derived_ids
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import DefinitionError
from enode_django.serialization.codec import decode_command, encode_command, restore_command
from enode_django.testing.histories import refusal, streams


class ProcessScenario:
    """A test of a process manager, which `given` begins.

    ``when`` may be called again; the ``then`` methods check the commands of the last event and raise `AssertionError`.
    ``yielded`` is what the process manager has yielded: commands with their derived ids, and deadlines.

    For example::

        started = TransferStarted(source="ada", target="bob", amount=Decimal(5))
        scenario = given(TransferProcess, "t").when(started)
        scenario.then(
            ReserveWithdrawal("ada", transfer="t", amount=Decimal(5)),
            ReserveDeposit("bob", transfer="t", amount=Decimal(5)),
        )
    """

    def __init__(self, process: type[ProcessManager], id: str, history: Sequence[DomainEvent]) -> None:
        self._process = subscribers.instance(process)
        self._id = id
        self._version = len(history)
        self._refused = 0
        self._has_begun = False
        self.yielded: Sequence[Yielded] = ()

    def when(self, happened: DomainEvent | DomainException) -> Self:
        """Deliver the aggregate's next event, or a stored refusal, twice, as after a redelivery.

        Raises what the handler raises, and `AssertionError` if it does not yield the same commands both times.
        """
        record = self._stored(happened)
        self.yielded, again = self._handled(record), self._handled(record)
        if list(self.yielded) != again:
            raise AssertionError(f"{happened!r} brings {self.yielded!r}, and delivered again {again!r}")
        self._has_begun = True
        return self

    def then(self, *yielded: Yielded) -> Self:
        """Assert that exactly these commands are sent, and these deadlines set and cancelled, in this order. The ids of
        commands are ignored."""
        if not self._has_begun:
            raise AssertionError("nothing has happened yet; call when() first")
        if [content_of(one) for one in self.yielded] != [content_of(one) for one in yielded]:
            raise AssertionError(f"expected the commands {list(yielded)!r}, got {list(self.yielded)!r}")
        return self

    @property
    def commands(self) -> Sequence[Command]:
        """The commands that the process manager would send now, with their derived ids."""
        return [one for one in self.yielded if isinstance(one, Command)]

    def then_nothing(self) -> Self:
        """Assert that no command is sent, and no deadline set or cancelled."""
        return self.then()

    def _stored(self, happened: DomainEvent | DomainException) -> StreamRecord:
        if isinstance(happened, DomainException):
            self._refused += 1
            return refusal(self._id, happened, self._refused)
        if not isinstance(happened, DomainEvent):
            raise DefinitionError(f"when() takes an event or a refusal, got {happened!r}")
        (record,) = streams(self._id, [happened], after=self._version)
        self._version += 1
        return record

    def _handled(self, record: StreamRecord) -> list[Yielded]:
        if record.version is None:
            refused = followed_refusal(self._process, record)
            followed = [] if refused is None else [refused]
        else:
            followed = HandledEvents(self._process).of(record)
        return [
            _delivered(yielded)
            for message, handlers in followed
            for handler in handlers
            for yielded in self._derived(handler(message), message.id)
        ]

    def _derived(self, yielded: Any, cause: str) -> Iterator[Yielded]:
        return with_derived_ids(() if yielded is None else yielded, cause=cause, subscriber=key_of(self._process))


def _delivered(yielded: Yielded) -> Yielded:
    """Return the command as a queue would deliver it: encoded and decoded."""
    if isinstance(yielded, CancelDeadline):
        return yielded
    if isinstance(yielded, Deadline):
        return dataclasses.replace(yielded, command=_command_delivered(yielded.command))
    return _command_delivered(yielded)


def _command_delivered(command: Command) -> Command:
    return restore_command(decode_command(encode_command(command, b"")))


def content_of(yielded: Yielded) -> Any:
    """Return what the ids of commands leave out: class, aggregate root id and fields of a command; name and time of a
    deadline with those of its command."""
    if isinstance(yielded, CancelDeadline):
        return yielded
    if isinstance(yielded, Deadline):
        return yielded.name, yielded.at, yielded.after, content_of(yielded.command)
    return type(yielded), yielded.aggregate_root_id, plain_of(yielded)
