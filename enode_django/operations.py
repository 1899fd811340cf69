"""Operations for the migrations of a project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

__all__ = ["ProtectHistory"]

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
