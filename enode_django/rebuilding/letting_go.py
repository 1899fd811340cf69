"""Letting go of the rows of other tables that replaced tables point to.

Tables that are kept for an undo are not read, but their foreign keys hold: a row that they point to could not be
deleted before the next rebuild, although no row in use points to it. So such keys are dropped after a swap, and an undo
makes them again. Keys with actions hold nothing, and keys among the projection's own tables hold no row of others.
"""

from __future__ import annotations

import logging
from functools import partial

from enode_django.databases import execute
from enode_django.exceptions import TablesInUse
from enode_django.rebuilding.clearing import shortly
from enode_django.rebuilding.definitions import describe, quoted
from enode_django.rebuilding.late import late_keys
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target

logger = logging.getLogger("enode_django.rebuilding")


def let_go(target: Target, replaced: Shadow) -> None:
    """Drop the foreign keys of the replaced tables to tables of others. A key whose table is in use by a long
    transaction stays, with a warning: the tables are swapped already. Not for use in a transaction."""
    with replaced.opened():
        tables = describe(target.alias, target.tables).values()
    own = {table.oid for table in tables}
    for table in tables:
        for key in late_keys(table):
            if key.references in own:
                continue
            owner = quoted(table.schema, table.name)
            drop = f"ALTER TABLE IF EXISTS {owner} DROP CONSTRAINT IF EXISTS {quoted(key.name)}"
            try:
                shortly(replaced, partial(execute, target.alias, drop, None))
            except TablesInUse:
                logger.warning(
                    "rows of %s cannot be deleted while the replaced table %s points to them: a long transaction uses "
                    "one of the two; drop its foreign key %s yourself, or rebuild %s again",
                    key.referenced,
                    owner,
                    key.name,
                    target.name,
                )
