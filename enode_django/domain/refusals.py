"""Business refusals: a handler or an aggregate raises one to say no, and the answer is final."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from enode_django.domain.declarations import Declared
from enode_django.exceptions import EnodeError


class DomainException(Declared, EnodeError):
    """``raise InsufficientFunds("the balance is too low", missing=Decimal(5))``

    Subclasses may declare typed fields, as messages do; they are given by keyword and checked when the exception is
    made. A refusal is stored, so that a repeated command is refused again, whatever has changed since. A class with
    ``durable = False`` is not stored: its commands are decided anew if a crash makes them come again.
    """

    durable: ClassVar[bool] = True
    schema_version = 1
    _reserved: ClassVar[frozenset[str]] = frozenset(
        {"args", "message", "retriable", "type_name", "schema_version", "add_note"}
    )

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(self.schema().complete(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).restore, (self.message, self.to_plain()))

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    @classmethod
    def restore(cls, message: str, plain: dict[str, Any]) -> Self:
        """The refusal that was stored; raises `InvalidField`."""
        refusal = cls.__new__(cls, message)
        refusal.args = (message,)
        refusal.__dict__.update(cls.schema().decode(plain))
        return refusal

    def to_plain(self) -> dict[str, Any]:
        return self.schema().encode(self.__dict__)
