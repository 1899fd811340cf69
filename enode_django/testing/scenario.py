"""Given/when/then tests of an aggregate, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.client import check_version
from enode_django.domain.aggregate import AggregateRoot, accept_events
from enode_django.domain.declarations import plain_of, schema_of
from enode_django.domain.handlers import Handlers
from enode_django.domain.messages import Command, DomainEvent, message_of
from enode_django.domain.method_handlers import aggregate_of
from enode_django.domain.refusals import DomainException
from enode_django.eventing.multi_projections import MultiProjection
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.projections import ModelProjection
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.unique_values import Owner
from enode_django.exceptions import DefinitionError
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.unique_keys import keys_of, values_of
from enode_django.serialization.codec import decode_command, restore_command
from enode_django.serialization.registry import types
from enode_django.serialization.sent_commands import SentCommand
from enode_django.testing.histories import check_events, streams
from enode_django.testing.inline import InlineCommandBus
from enode_django.testing.process_scenario import ProcessScenario, content_of
from enode_django.testing.row_scenario import Row, RowScenario
from enode_django.testing.rows_scenario import RowsScenario
from enode_django.testing.state_check import NotingHandlers, check_state

_NOT_ACCEPTED = (CommandStatus.REFUSED, CommandStatus.FAILED)


@overload
def given(*events: DomainEvent) -> Scenario: ...
@overload
def given(aggregate: type[AggregateRoot], /, *events: DomainEvent) -> Scenario: ...
@overload
def given(aggregate: type[AggregateRoot], id: str, /, *events: DomainEvent) -> Scenario: ...
@overload
def given(process: type[ProcessManager], id: str, /, *events: DomainEvent) -> ProcessScenario: ...
@overload
def given(projection: type[ModelProjection[Row]], /, *events: DomainEvent) -> RowScenario[Row]: ...
@overload
def given(projection: type[ModelProjection[Row]], id: str, /, *events: DomainEvent) -> RowScenario[Row]: ...
@overload
def given(projection: type[MultiProjection[Row]], /, *events: DomainEvent) -> RowsScenario[Row]: ...
@overload
def given(projection: type[MultiProjection[Row]], id: str, /, *events: DomainEvent) -> RowsScenario[Row]: ...
def given(*what: Any) -> Scenario | ProcessScenario | RowScenario[Any] | RowsScenario[Any]:
    """Begin a scenario with the past events of an aggregate, each as if from its own command.

    Without a class, it tests the aggregate whose method handles the first command, with the command's id. With a class
    of aggregates, a process manager, a `ModelProjection` or a `MultiProjection`, it tests that class; the aggregate's
    id may follow, and is required for a process manager.

    For example::

        scenario = given(AccountOpened(owner="Ada")).when(Withdraw("ada", amount=Decimal(5)))
        scenario.then_refused(InsufficientFunds, balance=Decimal(0))
    """
    cls, rest = (what[0], what[1:]) if what and isinstance(what[0], type) else (None, what)
    id, events = (rest[0], rest[1:]) if cls and rest and isinstance(rest[0], str) else (None, rest)
    check_events(events)
    if cls is None or issubclass(cls, AggregateRoot):
        return Scenario(cls, id, events)
    if issubclass(cls, Subscriber) and not cls._enode_methods:
        raise DefinitionError(f"{cls.__qualname__} handles no event; mark its handlers with @handles")
    if issubclass(cls, ModelProjection | MultiProjection) and not hasattr(cls, "model"):
        raise DefinitionError(
            f"{cls.__qualname__} has no model; name it: class {cls.__name__}({cls.__bases__[0].__name__}[…])"
        )
    if issubclass(cls, ModelProjection):
        return RowScenario(cls, id or "given", events)
    if issubclass(cls, MultiProjection):
        return RowsScenario(cls, id or "given", events)
    if not issubclass(cls, ProcessManager):
        raise DefinitionError(
            "given() takes events, after a class of aggregates, process managers, ModelProjections or MultiProjections,"
            f" got {cls!r}; whatever else follows events is tested with inline(followed_by=[…])"
        )
    if id is None:
        raise DefinitionError(
            f"given() takes the id of the aggregate whose events {cls.__qualname__} handles: given("
            f'{cls.__qualname__}, "some id", …)'
        )
    return ProcessScenario(cls, id, events)


class _KeepsSent(InlineCommandBus):
    """An inline bus that collects the commands that a handler sends by its context, and does not handle them: a
    scenario is about one aggregate."""

    def __init__(self, store: EventStore) -> None:
        super().__init__(store)
        self.sent: list[Command] = []
        self._noting: NotingHandlers | None = None

    def _handlers(self) -> Handlers:
        self._noting = NotingHandlers(super()._handlers())
        return self._noting

    def check_state(self, command: Command, status: CommandStatus) -> None:
        """Raise `AssertionError` if the handler has left a state that the stored events do not give. Of a command that
        was not accepted, a worker takes back the state only if the handler had applied an event."""
        context = self._noting.context if self._noting is not None else None
        if context is None or (status in _NOT_ACCEPTED and context.has_changes):
            return
        live = context.find(AggregateRoot)
        stored = AggregateLoader(self.store).load(command.aggregate_root_id)
        if live is not None and stored is not None and live.version == stored.version:  # not so after a repeat
            check_state(live, stored, command)

    def _sent_with(self, record: StreamRecord) -> Sequence[SentCommand]:
        self.sent += [restore_command(decode_command(body)) for _, body in super()._sent_with(record)]
        return ()


class Scenario:
    """A test of an aggregate, which `given` begins.

    ``when`` may be called again; the ``then`` methods check the last command and raise `AssertionError`. ``result`` is
    that command's `CommandResult`.

    For example::

        scenario = given(AccountOpened(owner="Ada")).when(Deposit("ada", amount=Decimal(5)))
        scenario.then(Deposited(amount=Decimal(5), balance=Decimal(5)), result=Decimal(5))
    """

    def __init__(self, aggregate: type[AggregateRoot] | None, id: str | None, history: Sequence[DomainEvent]) -> None:
        self._store = MemoryEventStore()
        self._bus = _KeepsSent(self._store)
        self._aggregate, self._id, self._history = aggregate, id, history
        if aggregate is not None and id is not None:
            self._begin(aggregate, id)
        self._events: list[DomainEvent] = []
        self._handled: set[tuple[str, str]] = set()
        self._is_repeat = False
        self.result: CommandResult | None = None

    def when(self, command: Command, *, expected_version: int | None = None) -> Self:
        """Handle a command like a command mailbox. Raises `AssertionError` if the state that the handler leaves is not
        the one that the events give."""
        if not isinstance(command, Command):
            raise DefinitionError(f"when() takes a command, got {command!r}")
        if self._history:
            self._begin(self._aggregate or _aggregate_of(command), self._id or command.aggregate_root_id)
        before = len(self._bus.events)
        self._bus.sent = []
        key = (command.id, command.aggregate_root_id)
        self._is_repeat = key in self._handled
        self._handled.add(key)
        self.result = self._bus.execute(command, 0, expected_version=check_version(expected_version))
        self._events = self._bus.events[before:]
        self._bus.check_state(command, self.result.status)
        return self

    def then(self, *events: DomainEvent, result: Any = None) -> Self:
        """Assert that the command succeeded with exactly these events and, if it is not None, this result."""
        outcome = self._outcome()
        if outcome.status is not CommandStatus.SUCCESS:
            raise AssertionError(f"expected {list(events)!r}, got {outcome.status.value} {_reason(outcome)}")
        if self._events != list(events):
            raise AssertionError(f"expected {list(events)!r}, got {self._events!r}")
        return self if result is None else self.then_result(result)

    def then_result(self, result: Any) -> Self:
        """Assert that the command succeeded, or changed nothing, with this result."""
        outcome = self._outcome()
        if outcome.error_type or outcome.value != result:
            raise AssertionError(f"expected the result {result!r}, got {outcome.value!r} {_reason(outcome)}")
        return self

    def then_sends(self, *commands: Command) -> Self:
        """Assert that the handler sent exactly these commands by ``context.send()``, in this order. Their ids are
        ignored. They are not handled."""
        self._outcome()
        if [content_of(one) for one in self._bus.sent] != [content_of(one) for one in commands]:
            raise AssertionError(f"expected the commands {list(commands)!r}, got {self._bus.sent!r}")
        return self

    def then_nothing(self) -> Self:
        """Assert that the command changed nothing."""
        outcome = self._outcome()
        if outcome.status is not CommandStatus.NOTHING_CHANGED:
            hint = "; it is a repeat, which gets its first answer: make another command" if self._is_repeat else ""
            told = f"{outcome.status.value} {self._events!r} {_reason(outcome)}".rstrip()
            raise AssertionError(f"expected no change, got {told}{hint}")
        return self

    def then_refused(self, refusal: type[DomainException], /, **fields: Any) -> Self:
        """Assert that the command was refused by this class of domain exception, with these field values."""
        outcome = self._outcome()
        expected = types.name_of(refusal)
        if outcome.status is not CommandStatus.REFUSED or outcome.error_type != expected:
            raise AssertionError(f"expected a refusal by {expected}, got {outcome.status.value} {_reason(outcome)}")
        raised = outcome.error
        for name, value in fields.items():
            if not hasattr(raised, name):
                known = ", ".join([*schema_of(refusal).names, "message"])
                raise DefinitionError(f"{expected} has no field {name!r}; its fields are {known}")
            if getattr(raised, name) != value:
                raise AssertionError(f"expected {expected}.{name} to be {value!r}, got {getattr(raised, name)!r}")
        return self

    def then_failed(self, error: type[BaseException] | str) -> Self:
        """Assert that the command failed with an exception of this class (or of this name)."""
        outcome = self._outcome()
        name = error if isinstance(error, str) else error.__name__
        if outcome.status is not CommandStatus.FAILED or outcome.error_type != name:
            raise AssertionError(f"expected it to fail with {name}, got {outcome.status.value} {_reason(outcome)}")
        return self

    def _begin(self, aggregate: type[AggregateRoot], id: str) -> None:
        root = aggregate(id)
        self._store.append(_records(root, self._history))
        if self._history and aggregate._enode_unique:  # another aggregate of this test must not take its values
            owner = Owner(id, root.version, f"given-{root.version}", "given")
            self._store.unique_values.claim(owner, list(keys_of(aggregate, values_of(root))), [])
        self._history = ()

    def _outcome(self) -> CommandResult:
        if self.result is None:
            raise AssertionError("nothing has happened yet; call when() first")
        return self.result


def _aggregate_of(command: Command) -> type[AggregateRoot]:
    cls = aggregate_of(type(command))
    if cls is None:
        name = type(command).__qualname__
        raise DefinitionError(
            f"{name} is handled by a function; say whose events are given: given(SomeAggregate, SomeEvent(…))"
        )
    return cls


def _reason(outcome: CommandResult) -> str:
    return f"({outcome.error_type}: {outcome.error_message})" if outcome.error_type else ""


def _records(root: AggregateRoot, history: Sequence[DomainEvent]) -> list[StreamRecord]:
    """Return the history as stored streams. The events are applied first, to detect events without an applier."""
    records = []
    for record, event in zip(streams(root.id, history, type_name=types.name_of(type(root))), history, strict=True):
        root.apply(message_of(type(event), plain_of(event)))  # a copy: the test may use its event again
        accept_events(root)
        records.append(record)
    return records
