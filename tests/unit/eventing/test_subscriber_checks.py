"""System checks of wrongly declared subscribers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connections, models
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import override_settings

from enode_django import DomainEvent, ModelProjection, ProcessManager, Projection, event_handler, handles, starts
from enode_django.checks.subscribers import check_subscribers
from enode_django.conf.groups import IMMEDIATE
from enode_django.eventing import event_handlers, subscribers
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError, DefinitionError
from enode_django.models import ReadModel
from enode_django.serialization.registry import types

POINTING = "enode_django.W181"


class Checked(DomainEvent):
    type_name = "checked.Checked"


class CheckedRow(ReadModel):
    class Meta:
        app_label = "checked"


class LinkedRow(ReadModel):
    groups: models.ManyToManyField[Group, Any] = models.ManyToManyField(Group)

    class Meta:
        app_label = "checked"


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without declarations. Forget those of the test after it."""
    monkeypatch.setattr(subscribers, "_declared", [])
    monkeypatch.setattr(event_handlers, "_groups", {})


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A database of another kind, which nothing is ever asked of."""
    settings = {**connections["default"].settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections["elsewhere"] = DatabaseWrapper(settings, "elsewhere")
    yield "elsewhere"
    del connections["elsewhere"]


class UsersElsewhere:
    routed: ClassVar[set[type[models.Model]]] = {User, CheckedRow}

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return "elsewhere" if model in self.routed else None


class EverythingElsewhere:
    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return "elsewhere"


def routed_by(router: object) -> override_settings:
    return override_settings(DATABASE_ROUTERS=[router])


def declare_rows(row_name: str = "checked.rows") -> None:
    class Rows(ModelProjection[CheckedRow]):
        name = row_name
        model = CheckedRow

        @handles(Checked)
        def checked(self, row: CheckedRow, event: Checked) -> None: ...


def declare_more_rows() -> None:
    class MoreRows(ModelProjection[CheckedRow]):
        name = "checked.more_rows"
        model = CheckedRow

        @handles(Checked)
        def checked(self, row: CheckedRow, event: Checked) -> None: ...


def declare_projection(*written: type[models.Model], projection_name: str = "checked.ledger") -> None:
    class Ledger(Projection):
        name = projection_name
        models = written

        @handles(Checked)
        def checked(self, event: Checked) -> None: ...


def declare_handler(name: str, **options: Any) -> None:
    @event_handler(Checked, name=name, **options)
    def handle(event: Checked) -> None: ...


def found() -> list[tuple[str, str]]:
    """Return all but the foreign keys to the tables of ``django.contrib.auth``, which stand in for a project's."""
    return [(message.id or "", message.msg) for message in check_subscribers(None) if message.id != POINTING]


def pointing() -> set[str]:
    return {message.msg.split()[0] for message in check_subscribers(None) if message.id == POINTING}


def test_nothing_is_said_of_subscribers_that_are_declared_well() -> None:
    declare_rows()
    declare_projection(User, Group)
    declare_handler("checked.one")
    declare_handler("checked.two")
    declare_handler("checked.three", group="checked", start="beginning")
    assert found() == []


def test_two_subscribers_of_one_name_are_found() -> None:
    declare_rows("checked.same")
    declare_projection(User, projection_name="checked.same")
    ((id, text),) = found()
    assert id == "enode_django.E014"
    assert "Rows and" in text
    assert "Ledger are or were both named 'checked.same'" in text


def test_two_projections_of_one_model_are_found() -> None:
    declare_rows("checked.rows")
    declare_more_rows()
    ((id, text),) = found()
    assert id == "enode_django.E019"
    assert "Rows and" in text
    assert "MoreRows have their rows in the same table 'checked_checkedrow'" in text


def test_a_row_with_links_that_its_projection_cannot_rebuild_is_found() -> None:
    class Linked(ModelProjection[LinkedRow]):
        name = "checked.linked"

        @handles(Checked)
        def checked(self, row: LinkedRow, event: Checked) -> None: ...

    ((id, text),) = found()
    assert id == "enode_django.W173"
    assert "Linked keeps rows with the ManyToManyField 'groups'" in text


def test_a_foreign_key_of_another_table_that_prevents_a_rebuild_is_found() -> None:
    declare_projection(ContentType)
    assert "auth.Permission.content_type" in pointing()


def test_a_foreign_key_among_the_tables_of_one_projection_is_not_found() -> None:
    declare_projection(ContentType, Permission)
    assert "auth.Permission.content_type" not in pointing()
    assert "auth.User_user_permissions.permission" in pointing()


def test_a_group_of_event_handlers_named_as_a_projection_is_found() -> None:
    declare_rows("checked.same")
    declare_handler("checked.one", group="checked.same")
    ((id, text),) = found()
    assert id == "enode_django.E014"
    assert "the group of event handlers 'checked.same'" in text


def test_a_projection_with_models_in_two_databases_is_found(elsewhere: str) -> None:
    declare_projection(User, Group)
    with routed_by(UsersElsewhere()):
        ids = dict(found())
    assert ids.keys() == {"enode_django.E015", "enode_django.E016"}
    assert "elsewhere, default" in ids["enode_django.E015"]


def test_rows_in_a_database_that_is_no_postgresql_are_found(elsewhere: str) -> None:
    declare_rows()
    declare_handler("checked.one")
    with routed_by(UsersElsewhere()):
        ((id, text),) = found()
    assert id == "enode_django.E016"
    assert "Rows" in text
    assert "'elsewhere', which is sqlite" in text


def test_a_store_in_a_database_that_is_no_postgresql_is_found_by_its_own_check(elsewhere: str) -> None:
    declare_rows()
    declare_handler("checked.one")
    with routed_by(EverythingElsewhere()), override_settings(ENODE={"EVENT_STORE": {"DATABASES": ["elsewhere"]}}):
        assert found() == []


def test_checkpoints_in_a_database_that_is_no_postgresql_are_found(elsewhere: str) -> None:
    declare_handler("checked.one")
    with routed_by(EverythingElsewhere()):
        ((id, text),) = found()
    assert id == "enode_django.E016"
    assert "the event handler tests.unit.eventing.test_subscriber_checks.declare_handler.<locals>.handle" in text


def test_handlers_of_a_group_that_begin_at_different_places_are_found() -> None:
    declare_handler("checked.one", group="checked.both")
    declare_handler("checked.two", group="checked.both", start="beginning")
    ((id, text),) = found()
    assert id == "enode_django.E017"
    assert "the group of event handlers 'checked.both'" in text
    one = "'checked.one' (start='now', replays=False, retry=None, aliases=())"
    assert f"{one}, 'checked.two' (start='beginning', replays=False, retry=None, aliases=())" in text


def test_a_subscriber_that_can_have_no_name_is_found_beside_the_others() -> None:
    class Unnamed(Projection):
        models = [User]

        @handles(Checked)
        def checked(self, event: Checked) -> None: ...

    declare_rows("checked.same")
    declare_projection(User, projection_name="checked.same")
    ids = dict(found())
    assert ids.keys() == {"enode_django.E014", "enode_django.W018"}
    assert "Unnamed belongs to no installed app" in ids["enode_django.W018"]


def test_handlers_of_a_group_with_one_name_are_found() -> None:
    @event_handler(Checked, name="checked.same", group="checked.twins")
    def one(event: Checked) -> None: ...

    @event_handler(Checked, name="checked.same", group="checked.twins")
    def other(event: Checked) -> None: ...

    ((id, text),) = found()
    assert id == "enode_django.E020"
    assert "'checked.same'" in text
    assert ".other" in text


def test_event_handlers_that_are_alone_may_begin_at_different_places() -> None:
    declare_handler("checked.one")
    declare_handler("checked.two", start="beginning", replays=True)
    assert found() == []
    assert [(group.name, group.start) for group in event_handlers.handler_groups()] == [
        ("checked.one", "now"),
        ("checked.two", "beginning"),
    ]


def declare_named_after_their_functions() -> None:
    class First:
        @staticmethod
        @event_handler
        def mail(event: Checked) -> None: ...

    @event_handler
    def mail(event: Checked) -> None: ...


def test_two_event_handlers_that_are_named_after_functions_of_one_name_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(types, "label_of", lambda module: "checked")
    declare_named_after_their_functions()
    ((id, text),) = found()
    assert id == "enode_django.E014"
    assert "First.mail and the event handler " in text
    assert "are or were both named 'checked.mail'" in text


def test_an_event_handler_outside_the_installed_apps_is_found_and_not_run() -> None:
    declare_named_after_their_functions()
    declare_handler("checked.named")
    assert [id for id, _ in found()] == ["enode_django.W018"] * 2
    assert [group.name for group in event_handlers.handler_groups()] == ["checked.named"]


def test_an_event_handler_that_joins_a_group_has_no_subscriber_of_its_own() -> None:
    declare_handler("checked.one", group="checked.both")
    declare_handler("checked.two", group="checked.both")
    (group,) = event_handlers.handler_groups()
    assert (group.name, len(group.handlers)) == ("checked.both", 2)


def test_a_handler_that_is_alone_under_the_name_of_a_group_is_found() -> None:
    declare_handler("checked.one", group="checked.both")
    declare_handler("checked.both")
    ((id, text),) = found()
    assert id == "enode_django.E014"
    assert "the group of event handlers 'checked.both' and the event handler" in text


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(DefinitionError, match="has no name of its own; give it one"):
        event_handler(Checked)(lambda event: None)


def test_fields_for_a_rebuild_that_no_model_has_are_found() -> None:
    class Rows(ModelProjection[CheckedRow]):
        name = "checked.rows"
        model = CheckedRow
        volatile = ("version", "seen")

        @handles(Checked)
        def checked(self, row: CheckedRow, event: Checked) -> None: ...

    class Ledger(Projection):
        name = "checked.ledger"
        models = (User, Group)
        aggregate_field = "account"
        volatile = ("last_login", "user")

        @handles(Checked)
        def checked(self, event: Checked) -> None: ...

    assert {id for id, _ in found()} == {"enode_django.E025"}
    assert sorted(text.partition("names ")[2].partition(",")[0] for _, text in found()) == [
        "'account' in aggregate_field",
        "'seen' in volatile",
    ]


@pytest.mark.parametrize("limit", [0, -1.0, "60", True, float("nan")])
def test_a_time_limit_that_is_no_number_above_0_is_refused(limit: Any) -> None:
    class Slow(ProcessManager):
        name = "checked.slow"
        time_limit = limit

        @handles(Checked)
        def checked(self, event: Checked) -> None: ...

    (found,) = [message for message in check_subscribers(None) if message.id == "enode_django.E040"]
    assert f"has the time_limit {limit!r}" in found.msg
    with pytest.raises(DefinitionError, match="time_limit"):
        event_handler(Checked, name="checked.mail", time_limit=limit)


@pytest.mark.parametrize("limit", [None, 5, 0.5, math.inf])
def test_a_time_limit_may_be_any_number_above_0_or_left_to_the_setting(limit: float | None) -> None:
    class Slow(ProcessManager):
        name = "checked.slow"
        time_limit = limit

        @handles(Checked)
        def checked(self, event: Checked) -> None: ...

    assert [message for message in check_subscribers(None) if message.id == "enode_django.E040"] == []


@pytest.mark.parametrize(
    ("pool", "size"),
    [(True, 4), ({"min_size": 2}, 2), ({"max_size": 5}, 5), ({"min_size": 0, "max_size": 6}, None), (None, None)],
)
def test_a_pool_with_fewer_connections_than_subscribers_is_named(
    pool: Any, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each subscriber keeps a connection, as does the one that makes snapshots."""
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", pool)
    for number in range(5):
        declare_handler(f"checked.{number}")
    texts = [message.msg for message in check_subscribers(None) if message.id == "enode_django.W182"]
    start = f"The pool of the database 'default' has {size} connections for a process, but an event worker needs 6"
    assert [text.startswith(start) for text in texts] == [True] * (size is not None)
    with override_settings(ENODE={"QUEUE": {"BACKEND": IMMEDIATE}}):
        assert "enode_django.W182" not in dict(found()), "there are no workers"


def test_the_longest_limit_that_a_handler_names_is_that_of_its_group() -> None:
    def handler(event: Checked) -> None: ...

    for number, limit in enumerate([5.0, None, 70.0]):
        event_handler(Checked, name=f"checked.{number}", group="checked.mails", time_limit=limit)(handler)
    (group,) = event_handlers.handler_groups()
    assert group.time_limit == 70.0


@pytest.mark.parametrize("aliases", [("checked.Other",), ("checked.before",)])
def test_an_alias_that_another_has_as_name_or_alias_is_found(aliases: tuple[str, ...]) -> None:
    @event_handler(Checked, name="checked.Other", aliases=("checked.before",))
    def other(event: Checked) -> None: ...

    @event_handler(Checked, name="checked.one", aliases=aliases)
    def one(event: Checked) -> None: ...

    ((id, text),) = found()
    assert id == "enode_django.E014"
    assert repr(aliases[0]) in text


def test_an_event_store_of_another_kind_is_refused_where_it_is_made(elsewhere: str) -> None:
    with pytest.raises(ConfigurationError, match="in the database 'elsewhere', which is sqlite; name a PostgreSQL"):
        PostgresEventStore(elsewhere)


@dataclasses.dataclass
class Unstorable:
    what: object = None


def test_a_state_that_cannot_be_stored_is_refused() -> None:
    class Odd(ProcessManager):
        name = "checked.odd"
        state = Unstorable

        @starts
        def checked(self, state: Unstorable, event: Checked) -> None: ...

    (found,) = [message for message in check_subscribers(None) if message.id == "enode_django.E041"]
    assert "Unstorable.what: object cannot be stored" in found.msg


@pytest.mark.parametrize(("databases", "count"), [(None, 0), (["default"], 0), (["elsewhere"], 1), ([], 1)])
def test_a_process_manager_whose_commands_nobody_relays_is_a_warning(databases: list[str] | None, count: int) -> None:
    @dataclasses.dataclass
    class Kept:
        amount: int = 0

    class Processes(ProcessManager[Kept]):
        name = "checked.processes"

        @starts
        def begun(self, kept: Kept, event: Checked) -> None: ...

    with override_settings(ENODE={"OUTBOX": {"DATABASES": databases}}):
        found = [message for message in check_subscribers(None) if message.id == "enode_django.W176"]
    assert len(found) == count
    for warning in found:
        assert "Processes keeps its commands and deadlines in the outbox of 'default'" in warning.msg


@dataclasses.dataclass
class Counted:
    times: int = 0


def test_a_key_that_no_handled_message_has_is_refused() -> None:
    class Misspelt(ProcessManager[Counted], key="bokking"):
        name = "checked.misspelt"

        @starts
        def checked(self, state: Counted, event: Checked) -> None: ...

    class OfDerived(ProcessManager[Counted], key="code"):
        name = "checked.of_derived"

        @starts
        def checked(self, state: Counted, event: Checked) -> None: ...

    class OfItsOwn(ProcessManager[Counted], key="bokking"):
        name = "checked.of_its_own"

        @starts(key=lambda event: event.aggregate_root_id)
        def checked(self, state: Counted, event: Checked) -> None: ...

    class CheckedWithCode(Checked):
        type_name = "checks.CheckedWithCode"
        code: str

    (found,) = [message for message in check_subscribers(None) if message.id == "enode_django.E178"]
    assert "Misspelt has key='bokking'" in found.msg
    assert "a field of Checked" in str(found.hint)


def test_a_misspelt_setting_of_a_subscriber_is_named() -> None:
    class Misspelt(ProcessManager):
        name = "checked.misspelt"
        resend = False

        @handles
        def checked(self, event: Checked) -> None: ...

    (found,) = [message for message in check_subscribers(None) if message.id == "enode_django.W177"]
    assert "the setting 'resends' keeps its default" in found.msg
