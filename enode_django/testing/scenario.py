"""Given these events, when this command comes, then that happens: an aggregate's rules without any database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from enode_django.client import check_version
from enode_django.commanding.results import CommandResult, CommandStatus
from enode_django.domain.aggregate import AggregateRoot, accept_events
from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import Command, DomainEvent, message_of
from enode_django.domain.refusals import DomainException
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.projections import ModelProjection
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError
from enode_django.serialization.codec import decode_command, restore_command
from enode_django.serialization.registry import types
from enode_django.serialization.sent_commands import SentCommand
from enode_django.testing.histories import streams
from enode_django.testing.inline import InlineCommandBus
from enode_django.testing.process_scenario import ProcessScenario, content_of
from enode_django.testing.row_scenario import Row, RowScenario


@overload
def given(what: type[AggregateRoot], id: str, *events: DomainEvent) -> Scenario: ...
@overload
def given(what: type[ProcessManager], id: str, *events: DomainEvent) -> ProcessScenario: ...
@overload
def given(what: type[ModelProjection[Row]], id: str, *events: DomainEvent) -> RowScenario[Row]: ...
def given(what: Any, id: str, *events: DomainEvent) -> Scenario | ProcessScenario | RowScenario[Any]:
    """Begin a scenario of a class of aggregates, of a process manager or of a `ModelProjection`: with an aggregate's
    id, and with what has happened to it. Each event counts as one command's."""
    if isinstance(what, type) and issubclass(what, AggregateRoot):
        return Scenario(what, id, events)
    if isinstance(what, type) and issubclass(what, ProcessManager):
        return ProcessScenario(what, id, events)
    if isinstance(what, type) and issubclass(what, ModelProjection):
        return RowScenario(what, id, events)
    raise DefinitionError(
        f"given() takes a class of aggregates, process managers or ModelProjections, got {what!r}; "
        "whatever else follows events is tested with inline(followed_by=[…])"
    )


class _KeepsSent(InlineCommandBus):
    """Handles no command that a handler has sent by its context: a scenario is one aggregate's."""

    def __init__(self, store: EventStore) -> None:
        super().__init__(store)
        self.sent: list[Command] = []

    def _sent_with(self, record: StreamRecord) -> Sequence[SentCommand]:
        self.sent += [restore_command(decode_command(body)) for _, body in super()._sent_with(record)]
        return ()


class Scenario:
    """``given(BankAccount, "a", AccountOpened(owner="Ada")).when(Deposit(…)).then(Deposited(…))``

    ``when`` may be called again; the ``then`` methods look at the last command. They raise `AssertionError`.
    """

    def __init__(self, aggregate: type[AggregateRoot], id: str, history: Sequence[DomainEvent]) -> None:
        self._id = id
        self._store = MemoryEventStore()
        self._bus = _KeepsSent(self._store)
        self._store.append(_records(aggregate, id, history))
        self._events: list[DomainEvent] = []
        self.result: CommandResult | None = None

    def when(self, command: Command, *, expected_version: int | None = None) -> Self:
        """Handle a command, as a command mailbox does."""
        if not isinstance(command, Command):
            raise DefinitionError(f"when() takes a command, got {command!r}")
        before = len(self._bus.events)
        self._bus.sent = []
        self.result = self._bus.execute(command, 0, expected_version=check_version(expected_version))
        self._events = self._bus.events[before:]
        return self

    def then(self, *events: DomainEvent, result: Any = None) -> Self:
        """The command succeeded with exactly these events (and, where given, this result)."""
        outcome = self._outcome()
        if outcome.status is not CommandStatus.SUCCESS:
            raise AssertionError(f"expected {list(events)!r}, got {outcome.status.value} {_reason(outcome)}")
        if self._events != list(events):
            raise AssertionError(f"expected {list(events)!r}, got {self._events!r}")
        if result is not None and outcome.value != result:
            raise AssertionError(f"expected the result {result!r}, got {outcome.value!r}")
        return self

    def then_sent(self, *commands: Command) -> Self:
        """The command's handler sent exactly these commands by ``context.send()``, in this order; their ids do not
        count. They are not handled."""
        self._outcome()
        if [content_of(one) for one in self._bus.sent] != [content_of(one) for one in commands]:
            raise AssertionError(f"expected the commands {list(commands)!r}, got {self._bus.sent!r}")
        return self

    def then_nothing(self) -> Self:
        """The command changed nothing."""
        outcome = self._outcome()
        if outcome.status is not CommandStatus.NOTHING_CHANGED:
            raise AssertionError(f"expected no change, got {outcome.status.value} {self._events!r} {_reason(outcome)}")
        return self

    def then_refused(self, refusal: type[DomainException], **fields: Any) -> Self:
        """The command was refused by this class of domain exception, with these field values."""
        outcome = self._outcome()
        expected = types.name_of(refusal)
        if outcome.status is not CommandStatus.REFUSED or outcome.error_type != expected:
            raise AssertionError(f"expected a refusal by {expected}, got {outcome.status.value} {_reason(outcome)}")
        raised = outcome.error
        for name, value in fields.items():
            if getattr(raised, name) != value:
                raise AssertionError(f"expected {expected}.{name} to be {value!r}, got {getattr(raised, name)!r}")
        return self

    def then_failed(self, error: type[BaseException] | str) -> Self:
        """The command failed with an exception of this class (or of this name)."""
        outcome = self._outcome()
        name = error if isinstance(error, str) else error.__name__
        if outcome.status is not CommandStatus.FAILED or outcome.error_type != name:
            raise AssertionError(f"expected it to fail with {name}, got {outcome.status.value} {_reason(outcome)}")
        return self

    def _outcome(self) -> CommandResult:
        if self.result is None:
            raise AssertionError("nothing has happened yet; call when() first")
        return self.result


def _reason(outcome: CommandResult) -> str:
    return f"({outcome.error_type}: {outcome.error_message})" if outcome.error_type else ""


def _records(aggregate: type[AggregateRoot], id: str, history: Sequence[DomainEvent]) -> list[StreamRecord]:
    """The history as stored streams; replaying it first finds events that the aggregate does not know."""
    root = aggregate(id)
    records = []
    for record, event in zip(streams(id, history, type_name=types.name_of(aggregate)), history, strict=True):
        root.apply(message_of(type(event), plain_of(event)))  # the test's own may be given again elsewhere
        accept_events(root)
        records.append(record)
    return records
