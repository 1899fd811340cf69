"""Given/when/then tests of a process manager, without a database and a queue."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.metadata import ambient_metadata
from enode_django.domain.refusals import DomainException
from enode_django.eventing.deadlines import CancelDeadline, Deadline
from enode_django.eventing.pending import handled_by
from enode_django.eventing.process_managers import ProcessManager, Yielded, crash_handler, has_state, yielded_by
from enode_django.eventing.processes import Process, Processes, state_type_of, steps_of
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.exceptions import DefinitionError
from enode_django.serialization.codec import decode_command, encode_command, restore_command
from enode_django.serialization.crashes import CommandCrashed
from enode_django.testing.histories import refusal, streams


class ProcessScenario:
    """A test of a process manager, which `given` begins with the past events of one aggregate. A process manager with a
    ``state`` handles them; one without a state does not.

    ``when`` may be called again; the ``then`` methods check the outcome of the last event, and raise `AssertionError`.
    ``yielded`` is what the process manager has yielded: commands with their derived ids, and deadlines. ``state`` is
    the state of the process that the event concerned; None if it concerned none, or one that has not begun.

    For example::

        started = TransferStarted(source="ada", target="bob", amount=Decimal(5))
        scenario = given(TransferProcess, "t").when(started)
        scenario.then(
            ReserveWithdrawal("ada", transfer="t", amount=Decimal(5)),
            ReserveDeposit("bob", transfer="t", amount=Decimal(5)),
        )
    """

    def __init__(self, process: type[ProcessManager], id: str, history: Sequence[DomainEvent]) -> None:
        self._manager = subscribers.instance(process)
        self._id = id
        self._versions: Counter[str] = Counter()
        self._refused = 0
        self._records: dict[CommandKey, StreamRecord] = {}
        self._processes: dict[str, Process] = {}
        self._last: Process | None = None
        self._key: str | None = None
        self._is_passed_over = False
        self._has_begun = False
        self.yielded: Sequence[Yielded] = ()
        for event in history:
            self._begin_with(event)

    @property
    def state(self) -> Any:
        last = self._last
        return state_type_of(self._manager).read(last.packed) if last is not None and last.has_begun else None

    def when(self, happened: DomainEvent | DomainException, *, of: str | None = None) -> Self:
        """Deliver the next event, or a stored refusal, of the aggregate ``of`` (by default the given one), twice, as
        after a redelivery. A process manager with a state handles it each time with the state from before, as after a
        crash before the commit.

        Raises what the handler raises, `AssertionError` if it does not yield the same commands both times, and
        `DefinitionError` for a refusal that is not stored.
        """
        record = self._stored(happened, of or self._id)
        done, again = self._handled(record), self._handled(record)
        self.yielded = done.yielded
        if self.yielded != again.yielded:
            raise AssertionError(f"{happened!r} brings {self.yielded!r}, and delivered again {again.yielded!r}")
        self._processes.update(done.processes)
        self._last = self._processes.get(done.key or "")
        self._key, self._is_passed_over = done.key, done.key not in done.processes
        self._has_begun = True
        return self

    def when_crashed(self, command: Command, error: BaseException) -> Self:
        """Deliver the crash of a command that the process manager has sent: it was ended by ``error``, which is not a
        refusal. Raises `DefinitionError` if it is one, or if the process manager does not handle crashes of such a
        command, and as `when` does."""
        if isinstance(error, DomainException):
            raise DefinitionError(
                f"{error!r} refuses the command, which is no crash; deliver it by when(…, of=…) if it is durable"
            )
        sender = crash_handler(self._manager)(command)
        if not sender:
            raise DefinitionError(
                f"{self._manager.name} handles no crash of {type(command).__qualname__}, which would be a dead letter; "
                f"mark a method with @handles_crash({type(command).__qualname__})"
            )
        crash = CommandCrashed.of(command, error, sender=sender)
        return self.when(crash, of=command.aggregate_root_id)

    @property
    def commands(self) -> Sequence[Command]:
        """The commands that the process manager would send now, with their derived ids."""
        return [one for one in self.yielded if isinstance(one, Command)]

    def then(self, *yielded: Yielded) -> Self:
        """Assert that exactly these commands are sent, and these deadlines set and cancelled, in this order. The ids of
        commands are ignored."""
        self._check_begun()
        if [content_of(one) for one in self.yielded] != [content_of(one) for one in yielded]:
            raise AssertionError(f"expected the commands {list(yielded)!r}, got {list(self.yielded)!r}{self._told()}")
        return self

    def then_nothing(self) -> Self:
        """Assert that no command is sent, and no deadline set or cancelled."""
        return self.then()

    def then_state(self, state: object) -> Self:
        """Assert that the process has this state (None: the event concerned no process, or one that has not begun)."""
        self._check_begun()
        if self.state != state:
            raise AssertionError(f"expected the state {state!r}, got {self.state!r}")
        return self

    def then_ended(self) -> Self:
        """Assert that the process has ended."""
        self._check_begun()
        if self._last is None or not self._last.has_ended:
            raise AssertionError(f"expected the process to have ended{self._told()}")
        return self

    def then_waits(self) -> Self:
        """Assert that the event waits for its process to begin."""
        self._check_begun()
        if self._last is None or not self._last.waiting:
            raise AssertionError(f"expected the event to wait for its process to begin{self._told()}")
        return self

    def _begin_with(self, event: DomainEvent) -> None:
        if has_state(self._manager):
            self.when(event)
        else:
            self._versions[self._id] += 1

    def _told(self) -> str:
        if not has_state(self._manager):
            return ""
        if self._last is None:
            return "; it concerns no process: nothing handles it, or its key is None"
        if not self._last.has_begun:
            return f"; the process {self._key!r} has not begun, and the event waits for it"
        if self._is_passed_over:
            return f"; the process {self._key!r} had ended before, and passes over what comes"
        return f"; the state is {self.state!r}"

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise AssertionError("nothing has happened yet; call when() first")

    def _stored(self, happened: DomainEvent | DomainException, id: str) -> StreamRecord:
        if isinstance(happened, DomainException):
            if not happened.durable:
                raise DefinitionError(
                    f"{happened!r} is not stored (durable = False), so {self._manager.name} would never get it; let "
                    "the aggregate raise a durable refusal, or apply an event"
                )
            self._refused += 1
            record = refusal(id, happened, self._refused)
        elif isinstance(happened, DomainEvent):
            (record,) = streams(id, [happened], after=self._versions[id])
            self._versions[id] += 1
        else:
            raise DefinitionError(f"when() takes an event or a refusal, got {happened!r}")
        self._records[record.command_id, id] = record
        return record

    def _handled(self, record: StreamRecord) -> _Handled:
        if not has_state(self._manager):
            return _Handled([_delivered(one) for one in self._yielded_without_state(record)], {}, None)
        steps = steps_of(self._manager, handled_by(self._manager, record))
        known = {step.key: self._processes.get(step.key, Process()) for step in steps}
        processes = Processes(self._manager, known, lambda keys: self._records, partial(handled_by, self._manager))
        processes.run(steps)
        return _Handled(
            [_delivered(one) for one in processes.yielded], processes.changed, steps[0].key if steps else None
        )

    def _yielded_without_state(self, record: StreamRecord) -> Sequence[Yielded]:
        """Call the handlers with the metadata around them that a worker gives them."""
        yielded: list[Yielded] = []
        for message, handlers in handled_by(self._manager, record):
            with ambient_metadata(dataclasses.replace(message.metadata, causation_id=message.id)):
                for handler in handlers:
                    yielded += yielded_by(self._manager, message.id, handler, message)
        return yielded


class _Handled(NamedTuple):
    yielded: Sequence[Yielded]
    processes: Mapping[str, Process]
    key: str | None


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
    """Return the contents without the ids of commands: class, aggregate root id and fields of a command; name and time
    of a deadline with those of its command."""
    if isinstance(yielded, CancelDeadline):
        return yielded
    if isinstance(yielded, Deadline):
        return yielded.name, yielded.at, yielded.after, content_of(yielded.command)
    return type(yielded), yielded.aggregate_root_id, plain_of(yielded)
