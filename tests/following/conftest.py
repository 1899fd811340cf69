from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

if TYPE_CHECKING:  # models can be imported when Django is set up, which is later than this module is
    from tests.following.domain import Behaviour
    from tests.following.harness import Harness


@pytest.fixture(scope="session")
def following_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Tables of models that belong to no installed app; tests in other folders may have made them."""
    from tests.following.domain import MODELS

    with django_db_blocker.unblock():
        known = connection.introspection.table_names()
        with connection.schema_editor() as editor:
            for model in MODELS:
                if model._meta.db_table not in known:
                    editor.create_model(model)


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

    for model in MODELS:
        model._base_manager.all().delete()
    return Harness()
