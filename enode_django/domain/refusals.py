"""Business refusals: a handler or an aggregate raises one to say no, and the answer is final."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

from enode_django.domain.declarations import declare
from enode_django.domain.fields import Schema
from enode_django.domain.messages import resolve_schema
from enode_django.exceptions import DefinitionError, EnodeError

_RESERVED = frozenset({"args", "message", "durable", "retriable", "type_name", "schema_version", "add_note"})


class DomainException(EnodeError):
    """``raise InsufficientFunds("the balance is too low", missing=Decimal(5))``

    Subclasses may declare typed fields, as messages do; they are given by keyword and checked when the exception is
    made. A refusal is stored, so that a repeated command is refused again, whatever has changed since. A class with
    ``durable = False`` is not stored: its commands are decided anew if a crash makes them come again.
    """

    durable: ClassVar[bool] = True
    schema_version: ClassVar[int] = 1
    _schema: ClassVar[Schema | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        taken = sorted(_RESERVED & inspect.get_annotations(cls).keys() - {"durable"})
        if taken:
            raise DefinitionError(
                f"{cls.__qualname__} declares the field {taken[0]!r}, which every refusal has already"
            )
        cls._schema = None
        declare(cls)

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(self.schema().complete(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).restore, (self.message, self.to_plain()))

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    @classmethod
    def schema(cls) -> Schema:
        """As `Message.schema`."""
        schema = cls.__dict__.get("_schema")
        if schema is None:
            schema = cls._schema = resolve_schema(cls)
        return schema

    @classmethod
    def restore(cls, message: str, plain: dict[str, Any]) -> Self:
        """The refusal that was stored; raises `InvalidField`."""
        refusal = cls.__new__(cls, message)
        refusal.args = (message,)
        refusal.__dict__.update(cls.schema().decode(plain))
        return refusal

    def to_plain(self) -> dict[str, Any]:
        return self.schema().encode(self.__dict__)


declare(DomainException)
