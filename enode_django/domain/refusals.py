"""Business refusals: exceptions by which a handler or an aggregate refuses a command finally."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeVar

from enode_django.domain.declarations import Declared, plain_of, schema_of
from enode_django.domain.messages import EventStamp
from enode_django.domain.metadata import Metadata
from enode_django.exceptions import EnodeError

Refusal = TypeVar("Refusal", bound="DomainException")


class DomainException(Declared, EnodeError):
    """The base of refusals: a handler or an aggregate raises one to refuse a command, for a business reason.

    Subclasses may declare typed fields, like messages; they are passed by keyword and checked by the constructor. A
    refusal is stored, so that a repeated command is refused again, regardless of later changes. A refusal of a class
    with ``durable = False`` is not stored: only the queue remembers the answer, for a limited number of commands.

    For example::

        class InsufficientFunds(DomainException):
            missing: Decimal

        refusal = InsufficientFunds("the balance is too low", missing=Decimal(5))
        assert (refusal.message, refusal.missing) == ("the balance is too low", 5)
    """

    durable: ClassVar[bool] = True
    schema_version = 1
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"durable", "schema_version"})

    def __init__(self, /, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(schema_of(type(self)).complete(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: self.__dict__[name] for name in _REMEMBERED if name in self.__dict__}
        return (restored_refusal, (type(self), self.message, plain_of(self)), state)

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def result(self) -> Any:
        """The `CommandResult` of the refused command if `execute_command` raised this, else None."""
        return self.__dict__.get(_RESULT)

    # -- of a stored refusal that a subscriber receives ------------------------------------------------------------

    @property
    def _enode_origin(self) -> EventStamp:
        stamp: EventStamp | None = self.__dict__.get("_enode_stamp")
        if stamp is None:
            raise AttributeError(
                f"{self!r} was not read from the event store: ids, timestamp and metadata are those of a stored refusal"
            )
        return stamp

    @property
    def id(self) -> str:
        """The id, derived from the refused command, so that it is the same at each reading."""
        return f"{self.aggregate_root_id}/refused/{self.command_id}"

    @property
    def aggregate_root_id(self) -> str:
        result = self.result
        root_id: str = self._enode_origin.aggregate_root_id if result is None else result.aggregate_root_id
        return root_id

    @property
    def timestamp(self) -> datetime:
        return self._enode_origin.timestamp

    @property
    def command_id(self) -> str:
        result = self.result
        command_id: str = self._enode_origin.origin.command_id if result is None else result.command_id
        return command_id

    @property
    def metadata(self) -> Metadata:
        """The metadata of the refused command, with the command as its cause."""
        return self._enode_origin.metadata


_RESULT = "_enode_result"
_REMEMBERED = (_RESULT, "__notes__")
"""Attributes that a copy keeps, besides message and fields."""


def restored_refusal(cls: type[Refusal], message: str, plain: dict[str, Any]) -> Refusal:
    """Return a stored refusal from its plain fields. Raises `InvalidField`."""
    refusal = cls.__new__(cls, message)
    refusal.args = (message,)
    refusal.__dict__.update(schema_of(cls).decode(plain))
    return refusal


def refusal_with_result(refusal: Refusal, result: object) -> Refusal:
    """Attach the `CommandResult` to the refusal, and return the refusal."""
    refusal.__dict__[_RESULT] = result
    return refusal


def stamp_refusal(refusal: DomainException, stamp: EventStamp) -> None:
    """Give a stored refusal its ids, timestamp and metadata."""
    refusal.__dict__["_enode_stamp"] = stamp


class VersionMismatch(DomainException):
    """The aggregate has another version than the sender of the command expected, because it has changed since.

    It is a refusal like any other: the command stays refused. Another command with another id may expect ``version``.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        try:
            execute_command(Deposit("ada", amount=Decimal(5)), expected_version=3)
        except VersionMismatch as changed:
            assert (changed.expected_version, changed.version) == (3, 1)
    """

    expected_version: int
    version: int


class ValueTaken(DomainException):
    """The value of the ``fields``, which must be unique, belongs to another aggregate.

    Forms and serializers show it at the first of the fields that they have.

    For example::

        refusal = ValueTaken("this email is taken", fields=("email",))
        assert refusal.fields == ("email",)
    """

    fields: tuple[str, ...]


class UnknownRefusal(DomainException):
    """Raised by `execute_command` for a refusal whose class is unknown in this process, or has other fields.

    It has the message of the refusal. ``result`` has its type name as ``error_type``, and its ``error_fields``.
    """
