from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.db.models import Model
from pytest_django import DjangoDbBlocker

if TYPE_CHECKING:  # at runtime, models cannot be imported before Django is set up
    from tests.following.domain import Behaviour
    from tests.following.harness import Harness
    from tests.following.inserting import Run, Script
    from tests.following.lines import Lines


@pytest.fixture(scope="session")
def following_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Make the tables of models that belong to no installed app, unless tests in other folders have made them."""
    from tests.following.domain import MODELS

    with django_db_blocker.unblock():
        _make_tables(MODELS)


def _make_tables(models: Iterable[type[Model]]) -> None:
    known = connection.introspection.table_names()
    with connection.schema_editor() as editor:
        for model in models:
            if model._meta.db_table not in known:
                editor.create_model(model)


def _delete_rows(models: Iterable[type[Model]]) -> None:
    """In one exchange with the database, and one transaction: foreign keys are checked at its end."""
    names = [connection.ops.quote_name(model._meta.db_table) for model in models]
    with connection.cursor() as cursor:
        cursor.execute("; ".join(f"DELETE FROM {name}" for name in names))


@pytest.fixture
def behaviour() -> Iterator[Behaviour]:
    from tests.following import domain

    vars(domain.behaviour).update(vars(domain.Behaviour()))
    yield domain.behaviour
    vars(domain.behaviour).update(vars(domain.Behaviour()))


@pytest.fixture
def harness(transactional_db: None, following_tables: None, behaviour: Behaviour) -> Harness:
    from tests.following.domain import MODELS
    from tests.following.harness import Harness

    _delete_rows(MODELS)
    return Harness()


@pytest.fixture
def orders(harness: Harness, order_tables: None) -> Iterator[Harness]:
    from tests.following import orders

    _delete_rows(orders.MODELS)
    yield harness
    vars(orders.trouble).update(vars(orders.Trouble()))


@pytest.fixture(scope="session")
def order_tables(following_tables: None, django_db_blocker: DjangoDbBlocker) -> None:
    from tests.following.orders import MODELS

    with django_db_blocker.unblock():
        _make_tables(MODELS)


@pytest.fixture
def stays(harness: Harness, stay_tables: None) -> Iterator[Harness]:
    from tests.following import stays

    _delete_rows(stays.MODELS)
    yield harness
    vars(stays.trouble).update(vars(stays.Trouble()))


@pytest.fixture(scope="session")
def stay_tables(following_tables: None, django_db_blocker: DjangoDbBlocker) -> None:
    from tests.following.stays import MODELS

    with django_db_blocker.unblock():
        _make_tables(MODELS)


@pytest.fixture(scope="session")
def line_tables(following_tables: None, django_db_blocker: DjangoDbBlocker) -> None:
    from tests.following.lines import WAITING

    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in WAITING:
            editor.create_model(model)


@pytest.fixture
def run(harness: Harness, line_tables: None) -> Iterator[Run]:
    """A function that handles an event of each of these aggregates by ``script``, in one batch. It returns the errors
    of the aggregates that failed, by id."""
    from enode_django.eventing.registry import subscribers
    from tests.following import lines
    from tests.following.domain import Added

    def run(script: Script, *ids: str, projection: type[Lines] = lines.Lines) -> dict[str, str]:
        subscriber: Any = subscribers.instance(projection)
        subscriber.script = script
        ids = ids or ("a", "b", "c")
        subscription = harness.subscription(subscriber, attempts=1)
        harness.deliver(subscription, [record for id in ids for record in harness.stored(id, Added(amount=5))])
        failed = {parked.aggregate_root_id: parked.error for parked in harness.parked(subscriber.name)}
        for id in ids:
            assert harness.checkpoint(subscriber.name, id) == (0 if id in failed else 1)
        return failed

    _delete_rows(reversed(lines.WAITING))
    yield run
    _delete_rows(reversed(lines.WAITING))
