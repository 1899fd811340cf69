from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connections, models
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import override_settings

from enode_django.api.received import is_pending, prune, receive
from enode_django.checks.store import check_store
from enode_django.models import Checkpoint, EventStream, Snapshot
from enode_django.monitoring.processors import newest_reports
from enode_django.routers import STORE_MODELS, EventStoreRouter
from sample_project.bank.domain import OpenAccount

ROUTER = EventStoreRouter()


def stored_in(*databases: str) -> override_settings:
    return override_settings(ENODE={"EVENT_STORE": {"DATABASES": [*databases]}})


@pytest.mark.parametrize("model", ["eventstream", "Snapshot", "storegeneration", "shard", "deadletter"])
def test_tables_of_the_store_lie_in_its_shards_only(model: str) -> None:
    with stored_in("events0", "events1"):
        allowed = [ROUTER.allow_migrate(db, "enode_django", model) for db in ("default", "events0", "events1")]
    assert allowed == [False, True, True]


@pytest.mark.parametrize(("label", "model"), [("enode_django", "checkpoint"), ("auth", "user"), ("auth", None)])
def test_nothing_else_lies_in_a_shard(label: str, model: str | None) -> None:
    with stored_in("events0"):
        assert ROUTER.allow_migrate("events0", label, model) is False
        assert ROUTER.allow_migrate("default", label, model) is None


def test_the_default_database_as_a_shard_has_everything() -> None:
    with stored_in("default", "events1"):
        assert ROUTER.allow_migrate("default", "enode_django", "eventstream")
        assert ROUTER.allow_migrate("default", "auth", "user") is None
        assert ROUTER.allow_migrate("events1", "auth", "user") is False


def test_models_of_the_store_are_read_from_the_first_shard() -> None:
    with stored_in("events0", "events1"):
        assert [ROUTER.db_for_read(model) for model in (EventStream, Snapshot)] == ["events0", "events0"]
        assert ROUTER.db_for_read(Checkpoint) is None
        assert ROUTER.db_for_write(Checkpoint) is None


def test_the_store_has_no_model_that_is_unknown() -> None:
    names = {model._meta.model_name for model in apps.get_app_config("enode_django").get_models()}
    assert names >= STORE_MODELS


def test_a_store_apart_without_its_router_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    known = connections.settings
    monkeypatch.setattr(connections, "settings", {**known, "events0": known["default"]})
    with stored_in("events0"):
        assert [message.id for message in check_store(None)] == ["enode_django.W021"]
        with override_settings(DATABASE_ROUTERS=["enode_django.routers.EventStoreRouter"]):
            assert check_store(None) == []


class AppRouter:
    """Sends all of this app to a database of its own, as the example of Django's documentation does."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "events" if model._meta.app_label == "enode_django" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "events") == (app_label == "enode_django")


@pytest.fixture
def sqlite_by_default() -> Iterator[None]:
    """A project whose default database is another one, and is never asked here, and PostgreSQL for the events."""
    postgres = connections["default"]
    sqlite = DatabaseWrapper({**postgres.settings_dict, "ENGINE": "django.db.backends.sqlite3"}, "default")
    connections["events"], connections["default"] = postgres, sqlite
    known = connections.settings
    connections.settings = {**known, "events": known["default"]}
    try:
        with stored_in("events"):
            yield
    finally:
        connections["default"], connections.settings = postgres, known
        del connections["events"]


@pytest.mark.parametrize(
    ("router", "reported"),
    [(f"{__name__}.AppRouter", []), ("enode_django.routers.EventStoreRouter", ["enode_django.E038"])],
)
def test_a_project_on_another_database_sends_the_whole_app_to_postgresql(
    sqlite_by_default: None, router: str, reported: list[str]
) -> None:
    with override_settings(DATABASE_ROUTERS=[router]):
        assert [message.id for message in check_store(None)] == reported


class ReplicaForReads:
    """Sends reads to a replica, as projects with one do. There is none here, so each use of it fails."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        return "replica"


@pytest.mark.django_db
@override_settings(DATABASE_ROUTERS=[f"{__name__}.ReplicaForReads"])
def test_what_must_be_up_to_date_is_not_read_from_a_replica() -> None:
    receive(OpenAccount("ada", id="c", owner="Ada"), {}, user="7")
    assert is_pending("c", "7")
    assert prune() == 0
    assert newest_reports() == []
