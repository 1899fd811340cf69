from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker


@pytest.fixture(scope="package", autouse=True)
def tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    # Models can be imported when Django is set up, which is later than this module is.
    from tests.integration.rowsapp.models import MODELS, Place, Region

    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            for model in MODELS:
                editor.create_model(model)
        Region.objects.create(number=1)
        Place.objects.create(code="here")
        connection.close()
    yield
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            for model in reversed(MODELS):
                editor.delete_model(model)
        connection.close()


@pytest.fixture
def emptied() -> Iterator[None]:
    """Empty the tables after a test that commits."""
    from tests.integration.rowsapp.models import Bare, Dated, Defaulted, Plain, WithArray

    yield
    for model in (Plain, WithArray, Dated, Defaulted, Bare):
        model._base_manager.all().delete()
