"""Parts of a table that a shadow gets only after it was loaded. To fill an index row by row costs several times as much
as to build it at once, and a foreign key costs a lookup for each row.

Unique indexes are made before, since handlers rely on them: ``ON CONFLICT`` needs one, and a value that is taken is an
error of the aggregate that writes it. So are foreign keys with actions on delete or update. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.rebuilding.definitions import Constraint, Index, Table

_ACTIONS = (" ON DELETE ", " ON UPDATE ")
NOT_VALID = " NOT VALID"
_UNCHECKED = (NOT_VALID, " NOT ENFORCED")


def late_indexes(table: Table) -> Sequence[Index]:
    """Return the indexes that are neither unique nor part of a constraint."""
    return [index for index in table.indexes if index.using and not index.is_unique]


def late_keys(table: Table) -> Sequence[Constraint]:
    """Return the foreign keys without actions on delete or update."""
    return [
        constraint
        for constraint in table.constraints
        if constraint.kind == "f" and not any(action in constraint.definition for action in _ACTIONS)
    ]


def without_late(table: Table) -> Table:
    """Return the table without its late indexes and foreign keys."""
    keys, indexes = late_keys(table), late_indexes(table)
    return table._replace(
        constraints=[constraint for constraint in table.constraints if constraint not in keys],
        indexes=[index for index in table.indexes if index not in indexes],
    )


def is_checked(key: Constraint) -> bool:
    """Return True if PostgreSQL guarantees the key for all rows: it is validated and enforced."""
    return not key.definition.endswith(_UNCHECKED)
