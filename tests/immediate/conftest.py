from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from enode_django.conf.groups import IMMEDIATE

if TYPE_CHECKING:  # models can be imported when Django is set up, which is later than this module is
    from tests.immediate.domain import Behaviour

NewProcess = Callable[..., None]


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Create the tables of models that belong to no installed app."""
    from tests.immediate.domain import MODELS

    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)


@pytest.fixture
def behaviour() -> Iterator[Behaviour]:
    from tests.immediate import domain

    vars(domain.behaviour).update(vars(domain.Behaviour()))
    yield domain.behaviour
    vars(domain.behaviour).update(vars(domain.Behaviour()))


@pytest.fixture
def new_process(settings: Any, transactional_db: None, tables: None, behaviour: Behaviour) -> Iterator[NewProcess]:
    """Return a function that begins as a new process with these subscribers does, in immediate mode."""
    from enode_django.eventing.registry import subscribers
    from enode_django.runtime import close_bus
    from tests.immediate.domain import MODELS

    for model in MODELS:
        model._base_manager.all().delete()
    settings.ENODE = {"QUEUE": {"BACKEND": IMMEDIATE}}
    with ExitStack() as stack:

        def begin(*chosen: Any) -> None:
            close_bus()
            stack.enter_context(subscribers.only(*chosen))

        yield begin
    close_bus()
