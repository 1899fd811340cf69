"""Business refusals: a handler or an aggregate raises one to say no, and the answer is final."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeVar

from enode_django.domain.declarations import Declared, plain_of, schema_of
from enode_django.domain.messages import EventStamp
from enode_django.domain.metadata import Metadata
from enode_django.exceptions import EnodeError

Refusal = TypeVar("Refusal", bound="DomainException")


class DomainException(Declared, EnodeError):
    """``raise InsufficientFunds("the balance is too low", missing=Decimal(5))``

    Subclasses may declare typed fields, as messages do; they are given by keyword and checked when the exception is
    made. A refusal is stored, so that a repeated command is refused again, whatever has changed since. A class with
    ``durable = False`` is not stored: its commands are decided anew if a crash makes them come again.
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
        """Return the `CommandResult` of the refused command where `execute_command` has raised this, else None."""
        return self.__dict__.get(_RESULT)

    # -- of a refusal that was stored and is handed to a subscriber ------------------------------------------------

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
        """Derived from the refused command, so it is the same however often the refusal is read."""
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
        """That of the refused command, with the command as its cause."""
        return self._enode_origin.metadata


_RESULT = "_enode_result"
_REMEMBERED = (_RESULT, "__notes__")
"""Attributes that a copy keeps, besides message and fields."""


def restored_refusal(cls: type[Refusal], message: str, plain: dict[str, Any]) -> Refusal:
    """Return the refusal that was stored; raises `InvalidField`."""
    refusal = cls.__new__(cls, message)
    refusal.args = (message,)
    refusal.__dict__.update(schema_of(cls).decode(plain))
    return refusal


def refusal_with_result(refusal: Refusal, result: object) -> Refusal:
    """Return the refusal itself, which has the `CommandResult` from now on."""
    refusal.__dict__[_RESULT] = result
    return refusal


def stamp_refusal(refusal: DomainException, stamp: EventStamp) -> None:
    """Give a stored refusal its ids, timestamp and metadata."""
    refusal.__dict__["_enode_stamp"] = stamp


class VersionMismatch(DomainException):
    """The aggregate has another version than the sender of the command expected: somebody else has changed it since.

    A refusal as any other: the command stays refused, and another one, with another id, may be sent on ``version``.
    """

    expected_version: int
    version: int


class UnknownRefusal(DomainException):
    """Raised by `execute_command` for a refusal whose class is unknown here, or has other fields here.

    It has the message of the refusal; ``result`` has its ``error_type``, the type name, and its ``error_fields``.
    """
