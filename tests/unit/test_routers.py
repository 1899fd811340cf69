from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connections
from django.test import override_settings

from enode_django.checks.store import check_store
from enode_django.models import Checkpoint, EventStream, Snapshot
from enode_django.routers import STORE_MODELS, EventStoreRouter

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
