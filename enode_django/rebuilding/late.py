"""Parts of a table that a shadow gets when it is loaded: an index that is filled row by row costs several times what it
costs to build it at once, and a foreign key asks for each row if the other row is there.

Indexes that are unique stay, since handlers and rows rest on them while they are written: ``ON CONFLICT`` needs one,
and a value that is taken is an error of the aggregate that wants it. So do foreign keys that change rows when others
are deleted or updated. Pure.
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
    """Return the foreign keys that do nothing but refuse."""
    return [
        constraint
        for constraint in table.constraints
        if constraint.kind == "f" and not any(action in constraint.definition for action in _ACTIONS)
    ]


def without_late(table: Table) -> Table:
    """Return the table as it is loaded."""
    keys, indexes = late_keys(table), late_indexes(table)
    return table._replace(
        constraints=[constraint for constraint in table.constraints if constraint not in keys],
        indexes=[index for index in table.indexes if index not in indexes],
    )


def unchanged(table: Table) -> Table:
    return table


def is_checked(key: Constraint) -> bool:
    """Return True if PostgreSQL vouches for all rows, and not only for those that are written from now on."""
    return not key.definition.endswith(_UNCHECKED)
