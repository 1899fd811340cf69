from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.following.conftest import (  # noqa: F401
    behaviour,
    following_tables,
    harness,
    order_tables,
    orders,
    stay_tables,
    stays,
)

if TYPE_CHECKING:
    from tests.following.harness import Harness
    from tests.rebuilding.domain import Effects

_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^enode_'"


@pytest.fixture
def projections(harness: Harness) -> Iterator[Harness]:  # noqa: F811
    """A harness in which `CounterRows` and `Entries` are the only subscribers. Schemas of rebuilds are dropped at the
    end."""
    from enode_django.eventing.registry import subscribers
    from tests.following.domain import CounterRows, Entries

    with subscribers.only(CounterRows, Entries):
        yield harness
    drop_schemas()


@pytest.fixture(scope="session")
def rebuilding_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    from tests.rebuilding.domain import MODELS

    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)


@pytest.fixture
def effects() -> Iterator[Effects]:
    from tests.rebuilding import domain

    vars(domain.effects).update(vars(domain.Effects()))
    yield domain.effects
    vars(domain.effects).update(vars(domain.Effects()))


@pytest.fixture
def postings(harness: Harness, rebuilding_tables: None, effects: Effects) -> Iterator[Harness]:  # noqa: F811
    """A harness in which `Postings` and `Balances` are the only subscribers. Their tables are empty."""
    from enode_django.eventing.registry import subscribers
    from tests.rebuilding.domain import MODELS, Balances, Postings

    for model in reversed(MODELS):
        for field in model._meta.local_many_to_many:
            field.remote_field.through._base_manager.all().delete()
        model._base_manager.all().delete()
    with subscribers.only(Postings, Balances):
        yield harness
    drop_schemas()


def drop_schemas() -> None:
    for name in schemas():
        with connection.cursor() as cursor:
            cursor.execute(f'DROP SCHEMA "{name}" CASCADE')


def schemas() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"{_SCHEMAS} ORDER BY nspname")
        return [name for (name,) in cursor.fetchall()]


@pytest.fixture
def followed(postings: Harness) -> Harness:
    """A history of three aggregates that `Postings` and `Balances` have handled."""
    from tests.rebuilding.histories import follow, some_history

    some_history(postings, "a", "b", "c")
    follow()
    return postings
