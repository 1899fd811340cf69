"""Database types that Django has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    BigIntegerField = models.BigIntegerField[int | str, int]
else:
    BigIntegerField = models.BigIntegerField


class TransactionIdField(BigIntegerField):
    """PostgreSQL's ``xid8``: a 64-bit transaction id that never wraps around. In Python an int."""

    description = "transaction id (xid8)"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "xid8"

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> int | None:
        return None if value is None else int(value)

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """Return the value as text, because xid8 has no operators for numbers. An expression stays as it is."""
        return str(value) if isinstance(value, int) else value


class CurrentTransactionId(models.Func):
    """The id of the transaction that evaluates it."""

    function = "pg_current_xact_id"
    arity = 0
    output_field = TransactionIdField()
