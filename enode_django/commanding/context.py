"""The context that a command handler works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from enode_django.commanding.sent_commands import SentCommands
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.metadata import Metadata
from enode_django.domain.method_handlers import nothing_creates
from enode_django.domain.origin import handled_command
from enode_django.domain.prefixes import check_sought
from enode_django.exceptions import (
    AggregateAlreadyExists,
    AggregateError,
    AggregateNotAdded,
    AggregateNotFound,
    AggregateTypeMismatch,
    DefinitionError,
    ForeignAggregateChanged,
    InvalidField,
    shown,
)
from enode_django.ids import check_id
from enode_django.serialization.codec import decode_metadata
from enode_django.serialization.plain import taken
from enode_django.serialization.sent_commands import SentCommand

Root = TypeVar("Root", bound=AggregateRoot)
Load = Callable[[str], AggregateRoot | None]


class CommandContext(Struct, eq=False):
    """Gives the command's own aggregate to change, and private copies of others to read.

    It lives for one call of a handler and belongs to that handler's thread.

    For example::

        class CopyAccount(Command):
            source: str

        @command_handler
        def copy_account(command: CopyAccount, context: CommandContext) -> None:
            account = BankAccount(context.aggregate_root_id)
            account.apply(AccountOpened(owner=context.get(BankAccount, command.source).owner))
            context.add(account)

        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(CopyAccount("bob", source="ada"))
        assert BankAccount.load("bob").owner == "Ada"
    """

    command: Command
    _aggregate: AggregateRoot | None
    _load: Load
    _metadata: bytes = b""
    _result: Any = None
    _is_new: bool = False
    _changed: tuple[AggregateRoot, ...] = ()
    _error: BaseException | None = None
    _foreign: dict[str, AggregateRoot | None] | None = None
    _sent: SentCommands | None = None

    __repr__ = object.__repr__

    @property
    def command_id(self) -> str:
        return self.command.id

    @property
    def aggregate_root_id(self) -> str:
        return self.command.aggregate_root_id

    @property
    def metadata(self) -> Metadata:
        return decode_metadata(self._metadata)

    def get(self, cls: type[Root], id: str | None = None) -> Root:
        """Return the command's aggregate, or a private read-only copy of another one, from the store (this blocks).

        Raises `AggregateNotFound`, `AggregateTypeMismatch` if the id is that of another class, `InvalidId` if no
        aggregate of this class can have it, and `DefinitionError` for what is no class of aggregates. Raises
        `StoreUnavailable`, after which the command is handled again, even if its handler catches the error.
        """
        if id is None and type(self._aggregate) is cls:
            return self._aggregate  # nearly always
        aggregate = self.find(cls, id)
        if aggregate is None:
            hint = "; no handler makes one: mark its first with @command_handler(creates=True)"
            raise AggregateNotFound(
                f"there is no {cls.__qualname__} with the id {self._own_or(id)!r}{hint if nothing_creates(cls) else ''}"
            )
        return aggregate

    def find(self, cls: type[Root], id: str | None = None) -> Root | None:
        """Return the aggregate as `get` does, or None if it does not exist."""
        if not isinstance(cls, type) or not issubclass(cls, AggregateRoot):
            raise DefinitionError(
                f"{shown(cls)} is not an aggregate class; pass the class, then the id if it is another's"
            )
        if id is None or id == self.command.aggregate_root_id:
            aggregate = self._aggregate
        else:
            foreign = self._foreign = self._foreign or {}
            if id not in foreign:
                foreign[id] = self._load(id if isinstance(id, str) else check_id(id, "aggregate root id"))
            aggregate = foreign[id]
        if aggregate is None:
            check_sought(cls, self._own_or(id))
        elif not isinstance(aggregate, cls):
            raise AggregateTypeMismatch(
                f"{self._own_or(id)!r} is of the class {type(aggregate).__qualname__}, not {cls.__qualname__}"
            )
        return aggregate

    def add(self, aggregate: AggregateRoot) -> None:
        """Add the aggregate that the command creates.

        Raises `AggregateAlreadyExists`, `ForeignAggregateChanged` for an id that is not the command's, and
        `AggregateNotFound` for an aggregate that has a version but is not stored.
        """
        if not isinstance(aggregate, AggregateRoot):
            raise DefinitionError(f"context.add({shown(aggregate)}) is given no aggregate; pass the new one")
        if aggregate.id != self.command.aggregate_root_id:
            raise ForeignAggregateChanged(
                f"a command for {self.command.aggregate_root_id!r} cannot add {aggregate.id!r}; send it a command"
            )
        if self._aggregate is not None and self._aggregate is not aggregate:
            self._changed = tuple(changed for changed in self._changed if changed is not aggregate)
            raise AggregateAlreadyExists(
                f"the {type(self._aggregate).__qualname__} {aggregate.id!r} exists already; choose another id"
            )
        if self._aggregate is None and aggregate.version:
            raise AggregateNotFound(
                f"{aggregate.id!r} is not stored and cannot be added at version {aggregate.version}; add a new one"
            )
        self._is_new = self._is_new or self._aggregate is None
        self._aggregate = aggregate

    def set_result(self, value: Any) -> None:
        """Set ``result.value`` for the caller of ``execute_command``: plain values, lists and dicts of them. The value
        is copied. Raises `InvalidField` for anything else."""
        try:
            self._result = taken(value)
        except InvalidField as error:
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, DomainEvent):
                    raise InvalidField(
                        f"the result has {shown(one)}; an event is not returned: write self.apply({shown(one)})"
                    ) from error
            raise InvalidField(
                f"the result {shown(value)} cannot be sent: {error}; set plain values, lists and dicts of them"
            ) from error

    @property
    def result(self) -> Any:
        """The result as the sender will receive it."""
        return self._result

    def send(self, command: Command) -> str:
        """Send a command if, and only if, the events of the command being handled are stored. Return its id.

        The command is stored with the events, as it is now, and sent when they are durable. It is not sent if the
        command being handled is refused or fails. Its id is derived from the handled command's, and from how many
        commands of its class went to its aggregate before, so that handling that command again sends the same one. It
        carries the handled command's metadata, with that command as its cause. Raises `InvalidField` for a command that
        cannot be sent.

        The handled command fails with a `DefinitionError` if it applies no event. Raises `DefinitionError` for a value
        that is not a command, and if it is called by another thread than the handler's, or after the handler.
        """
        if handled_command.get() is not self:
            raise DefinitionError(
                f"context.send({shown(command)}) is called outside of the handler of "
                f"{type(self.command).__qualname__}: nothing would be sent; call it in the handler, in its thread"
            )
        if self._sent is None:
            self._sent = SentCommands(self.command, self.metadata)
        return self._sent.add(command)

    @property
    def sent(self) -> Sequence[SentCommand]:
        """The commands that were given to `send`, as they travel."""
        return self._sent.messages if self._sent is not None else ()

    def _own_or(self, id: str | None) -> str:
        return self.command.aggregate_root_id if id is None else id

    def note_change(self, aggregate: AggregateRoot) -> None:
        """Note an aggregate that changes. Called by its first ``apply`` while the command is handled."""
        self._changed += (aggregate,)

    def note_error(self, error: BaseException) -> None:
        """Note an error of an applier. The first one counts."""
        self._error = self._error or error

    def note_failure(self, error: BaseException) -> None:
        """Note the error of a handler, which middleware may swallow: the partial effects of a handler are not
        stored."""
        if self._changed or self.sent:
            self.note_error(error)

    def changed_aggregate(self) -> AggregateRoot | None:
        """Return the command's aggregate if it has uncommitted events, else None.

        Raises the first error that was noted and swallowed: replaying the event of an applier would raise it again.
        Raises `ForeignAggregateChanged` or `AggregateNotAdded` if another aggregate has events, and `DefinitionError`
        if commands are to be sent but no event was applied.
        """
        if self._error is not None:
            raise self._error
        own = self._aggregate
        for aggregate in self._changed:
            if aggregate is not own:
                raise self._lost(aggregate)
        if self._changed:
            return own
        if self.sent:
            raise DefinitionError(
                f"the handler of {type(self.command).__qualname__} sends commands with context.send() but applies no "
                "event that they could be stored with; apply one, or send them with send_command()"
            )
        return None

    def _lost(self, aggregate: AggregateRoot) -> AggregateError:
        own = self.command.aggregate_root_id
        if aggregate.id == own:
            kind = type(aggregate).__qualname__
            return AggregateNotAdded(f"a new {kind} {own!r} has events that would be lost; call context.add() with it")
        return ForeignAggregateChanged(f"a command for {own!r} cannot change {aggregate.id!r}; send it a command")

    @property
    def has_changes(self) -> bool:
        """True if the command's stored aggregate (not a new one) has applied events."""
        return not self._is_new and self._aggregate is not None and bool(self._aggregate._enode_uncommitted)
