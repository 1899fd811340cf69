"""Operations for the migrations of a project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib.postgres.indexes import BrinIndex
from django.db import NotSupportedError, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

__all__ = ["PartitionEventStream", "ProtectHistory"]

_FUNCTION = "enode_django_refuse_change"
_TABLES = {"eventstream": "WHEN (OLD.version IS NOT NULL)", "eventcorrection": "", "storegeneration": ""}
"""The condition on rows that cannot be deleted, by model. Refusals can be deleted: the framework prunes them."""


class ProtectHistory(Operation):
    """Makes the database refuse UPDATE and DELETE of stored events, corrections and generations of the store for every
    user. Such a statement fails with an IntegrityError. TRUNCATE is not refused.

    The migration must depend on the migration of enode_django that makes these tables. On a database without them it
    does nothing.

    For example::

        class Migration(migrations.Migration):
            dependencies = [("shop", "0001_initial"), ("enode_django", "0020_rebuild_corrections")]
            operations = [ProtectHistory()]
    """

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        tables = dict(self._tables(schema_editor, to_state))
        if not tables:
            return
        schema_editor.execute(
            f"CREATE OR REPLACE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'rows of % are neither changed nor deleted', TG_TABLE_NAME USING "
            "ERRCODE = 'restrict_violation', "
            "HINT = 'Correct events by manage.py enode parked edit, or by another event.'; END $$",
            params=None,
        )
        for table, condition in tables.items():
            for deed, rows in (("UPDATE", ""), ("DELETE", condition)):
                schema_editor.execute(
                    f"CREATE OR REPLACE TRIGGER {_trigger(deed)} BEFORE {deed} ON {table} FOR EACH ROW {rows} "
                    f"EXECUTE FUNCTION {_FUNCTION}()",
                    params=None,
                )

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        tables = dict(self._tables(schema_editor, from_state))
        for table in tables:
            for deed in ("UPDATE", "DELETE"):
                schema_editor.execute(f"DROP TRIGGER IF EXISTS {_trigger(deed)} ON {table}", params=None)
        if tables:
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {_FUNCTION}()", params=None)

    def _tables(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> Iterator[tuple[str, str]]:
        for name, condition in _TABLES.items():
            model: Any = state.apps.get_model("enode_django", name)
            if self.allow_migrate_model(schema_editor.connection.alias, model):
                yield schema_editor.quote_name(model._meta.db_table), condition

    def describe(self) -> str:
        return "Let the database refuse changes of stored events"

    @property
    def migration_name_fragment(self) -> str:
        return "protect_history"


def _trigger(deed: str) -> str:
    return f"enode_refuse_{deed.lower()}"


class PartitionEventStream(Operation):
    """Makes the table of event streams one that is partitioned by HASH of the aggregate's id, so that all streams of an
    aggregate are in one partition. Reversed, it makes one table of them again. The models stay as they are.

    Both directions copy all rows to a new table in the order of their sequences, within the transaction of the
    migration: nobody can read or write streams meanwhile, and until its end the disk holds them twice. Positions,
    sequences, indexes, constraints, triggers, grants and the owner stay as they were; the tablespace is the default
    one. Each partition has the sequence as its primary key, since a primary key of the whole table would have to
    contain the aggregate's id.

    The migration must depend on the newest migration of enode_django. Raises ValueError unless ``partitions`` is from 2
    to 1,024, and, when it is applied, NotSupportedError if the table is partitioned already, or has what a copy of
    it would not have: row level security, a rule, a replica identity of its own, a place in a publication.

    For example::

        class Migration(migrations.Migration):
            dependencies = [("shop", "0001_initial"), ("enode_django", "0030_rebuild_generations")]
            operations = [PartitionEventStream(partitions=16)]
    """

    reduces_to_sql = False  # the statements depend on what the table has
    reversible = True

    def __init__(self, partitions: int) -> None:
        if not 2 <= partitions <= _MOST_PARTITIONS:
            raise ValueError(f"{partitions!r} partitions are not possible; give from 2 to {_MOST_PARTITIONS}")
        self.partitions = partitions

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._replace(schema_editor, to_state, self.partitions)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._replace(schema_editor, from_state, 0)

    def _replace(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState, partitions: int) -> None:
        model: Any = state.apps.get_model("enode_django", "eventstream")
        alias = schema_editor.connection.alias
        if self.allow_migrate_model(alias, model):
            with transaction.atomic(using=alias):  # for a migration that is not atomic itself
                _Replacing(schema_editor, model, partitions).run()

    def describe(self) -> str:
        return f"Partition the event streams into {self.partitions} tables"

    @property
    def migration_name_fragment(self) -> str:
        return "partition_event_stream"


_MOST_PARTITIONS = 1024
_FEWEST_PAGES = 16
"""The pages that a range of a BRIN index has at least."""

_PLACE = """
    SELECT format('%%s.%%I', c.relnamespace::regnamespace, c.relname), c.relkind::text, c.oid::bigint,
           quote_ident(pg_get_userbyid(c.relowner))
    FROM pg_class AS c WHERE c.oid = to_regclass(%s)
"""

# These would be lost without an error. Views and foreign keys make DROP TABLE fail.
_OBSTACLES = """
    SELECT 'it has row level security' FROM pg_class WHERE oid = %s AND (relrowsecurity OR relforcerowsecurity)
    UNION ALL SELECT 'it has a replica identity of its own' FROM pg_class WHERE oid = %s AND relreplident <> 'd'
    UNION ALL SELECT format('it has the policy %%I', polname) FROM pg_policy WHERE polrelid = %s
    UNION ALL SELECT format('it has the rule %%I', rulename) FROM pg_rewrite WHERE ev_class = %s
    UNION ALL SELECT format('it is in the publication %%I', p.pubname)
        FROM pg_publication_rel JOIN pg_publication AS p ON p.oid = prpubid WHERE prrelid = %s
"""

# What hangs on the table and is not of the model: statements that make it anew on a table of the same name.
_ADDITIONS = """
    SELECT format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', %s::text, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE conrelid = %s AND contype IN ('u', 'x', 'f') AND conname <> ALL(%s::text[])
    UNION ALL
    SELECT replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
    FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
    WHERE indrelid = %s AND NOT indisprimary AND c.relname <> ALL(%s::text[])
      AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND conrelid = indrelid)
    UNION ALL
    SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal
    UNION ALL
    SELECT format('GRANT %%s ON %%s TO %%s%%s', (acl).privilege_type || on_column, object,
                  CASE (acl).grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid((acl).grantee)) END,
                  CASE WHEN (acl).is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM (SELECT '', CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || oid::regclass, acl
              FROM pg_class, aclexplode(relacl) AS acl WHERE oid IN (%s, %s::regclass) AND acl.grantee <> relowner
          UNION ALL SELECT format(' (%%I)', attname), attrelid::regclass::text, acl
              FROM pg_attribute, aclexplode(attacl) AS acl WHERE attrelid = %s AND NOT attisdropped
         ) AS granted (on_column, object, acl)
"""

_COLUMNS = """
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""

# Only tables with rows of their own can have storage parameters; the partitions have the same.
_OPTIONS = """
    SELECT string_agg(option, ', ') FROM pg_class, unnest(reloptions) AS option
    WHERE oid = coalesce((SELECT min(inhrelid::bigint)::oid FROM pg_inherits WHERE inhparent = %s), %s::oid)
"""


class _Replacing:
    """Replaces the table of streams, within the current transaction, by one with ``partitions`` (0: a plain table)."""

    def __init__(self, editor: BaseDatabaseSchemaEditor, model: Any, partitions: int) -> None:
        self._editor = editor
        self._model = model
        self._partitions = partitions
        self._do(f"LOCK TABLE {self._name()} IN ACCESS EXCLUSIVE MODE")
        ((self._table, kind, self._oid, self._owner),) = self._ask(_PLACE, self._name())
        if (kind == "p") is bool(partitions):
            found = "is partitioned already; reverse that first" if partitions else "is not partitioned"
            raise NotSupportedError(f"the table {self._table} {found}")

    def run(self) -> None:
        self._check_obstacles()
        sequence = self._ask("SELECT pg_get_serial_sequence(%s, 'sequence')", self._table)[0][0]
        ((last, is_used),) = self._ask(f"SELECT last_value, is_called FROM {sequence}")
        additions, options = self._additions(sequence), self._options()
        new = self._table_named("_new")
        self._make(new, options)
        self._copy(new)
        self._do(f"DROP TABLE {self._table}")
        self._do(f"ALTER TABLE {new} RENAME TO {self._name()}")
        self._do(
            f"ALTER TABLE {self._table} ALTER sequence ADD GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME {sequence})"
        )
        self._ask("SELECT setval(%s, %s, %s)", sequence, last, is_used)
        self._complete(additions)

    # -- what there is ------------------------------------------------------------------------------------------------

    def _check_obstacles(self) -> None:
        found = [text for (text,) in self._ask(_OBSTACLES, *[self._oid] * 5)]
        if found:
            raise NotSupportedError(
                f"the table {self._table} cannot be replaced: {', '.join(found)}; remove that, and make it again "
                "afterwards"
            )

    def _additions(self, sequence: str) -> Sequence[str]:
        own = [one.name for one in (*self._model._meta.constraints, *self._model._meta.indexes)]
        oid = self._oid
        return [one for (one,) in self._ask(_ADDITIONS, self._table, oid, own, oid, own, oid, oid, sequence, oid)]

    def _options(self) -> str:
        ((options,),) = self._ask(_OPTIONS, self._oid, self._oid)
        return f" WITH ({options})" if options else ""

    # -- what is made -------------------------------------------------------------------------------------------------

    def _make(self, new: str, options: str) -> None:
        like = f"CREATE TABLE {new} (LIKE {self._table} INCLUDING ALL EXCLUDING IDENTITY EXCLUDING INDEXES)"
        if not self._partitions:
            self._do(like + options)
            return
        self._do(f"{like} PARTITION BY HASH (aggregate_root_id)")
        for number, part in enumerate(self._parts()):
            values = f"WITH (MODULUS {self._partitions}, REMAINDER {number})"
            self._do(f"CREATE TABLE {part} PARTITION OF {new} FOR VALUES {values}{options}")

    def _copy(self, new: str) -> None:
        """Copy the rows. In the order of the sequences a BRIN index of the transactions stays small and exact."""
        ((columns,),) = self._ask(_COLUMNS, self._oid)
        self._do(f"INSERT INTO {new} ({columns}) SELECT {columns} FROM {self._table} ORDER BY sequence")

    def _complete(self, additions: Sequence[str]) -> None:
        for table in self._parts() or [self._table]:
            self._do(f"ALTER TABLE {table} ADD PRIMARY KEY (sequence)")
        for constraint in self._model._meta.constraints:
            self._editor.add_constraint(self._model, constraint)
        for index in self._model._meta.indexes:
            self._editor.add_index(self._model, self._fitting(index))
        for table in [self._table, *self._parts()]:
            self._do(f"ALTER TABLE {table} OWNER TO {self._owner}")
        for statement in additions:
            self._do(statement)
        if self._ask(f"SELECT EXISTS(SELECT FROM {self._table})") == [(True,)]:
            self._do(f"ANALYZE {self._table}")

    def _fitting(self, index: models.Index) -> models.Index:
        """Return the index as the partitions need it. A search by a BRIN index reads the newest pages of each partition
        whole, as many as one range has, so their ranges together are as large as that of one table."""
        _, expressions, options = index.deconstruct()
        if not self._partitions or not isinstance(index, BrinIndex) or "pages_per_range" not in options:
            return index
        pages = max(_FEWEST_PAGES, options["pages_per_range"] // self._partitions)
        return BrinIndex(*expressions, **{**options, "pages_per_range": pages})

    # -- names and statements -----------------------------------------------------------------------------------------

    def _parts(self) -> Sequence[str]:
        return [self._table_named(f"_p{number}") for number in range(self._partitions)]

    def _table_named(self, suffix: str) -> str:
        schema = self._table.rpartition(".")[0]
        return f"{schema}.{self._name(suffix)}"

    def _name(self, suffix: str = "") -> str:
        return self._editor.quote_name(f"{self._model._meta.db_table}{suffix}")

    def _do(self, statement: str) -> None:
        self._editor.execute(statement, params=None)

    def _ask(self, question: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._editor.connection.cursor() as cursor:
            cursor.execute(question, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
