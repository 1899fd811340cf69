"""The rows that a projection's class declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from django.db import models

from enode_django import DomainEvent, ModelProjection, MultiProjection, ProcessManager, Projection, handles
from enode_django.eventing import subscribers
from enode_django.eventing.base_projections import makes_row
from enode_django.exceptions import DefinitionError
from enode_django.models import ReadModel


class Opened(DomainEvent):
    type_name = "parameters.Opened"


class Reopened(Opened):
    type_name = "parameters.Reopened"


class Renamed(DomainEvent):
    type_name = "parameters.Renamed"


class FirstRow(ReadModel):
    class Meta:
        app_label = "parameters"


class SecondRow(ReadModel):
    class Meta:
        app_label = "parameters"


class Unversioned(models.Model):
    class Meta:
        app_label = "parameters"


class OfAnother(FirstRow):
    """Its version is in the table of its parent."""

    class Meta:
        app_label = "parameters"


class OwnVersion(ReadModel):
    version = models.CharField(max_length=10)  # type: ignore[assignment]

    class Meta:
        app_label = "parameters"


@dataclass
class State:
    renames: int = 0


Row = TypeVar("Row", bound=ReadModel)
More = TypeVar("More")


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without declarations. Forget those of the test after it."""
    monkeypatch.setattr(subscribers, "_declared", [])


class Base(ModelProjection[Row], Generic[More, Row]):
    abstract = True

    @handles
    def renamed(self, row: Row, event: Renamed) -> None: ...


def test_the_model_is_the_parameter_of_the_class() -> None:
    class Rows(ModelProjection[FirstRow]):
        @handles
        def renamed(self, row: FirstRow, event: Renamed) -> None: ...

    class Both(ModelProjection[FirstRow]):
        model = FirstRow

    class Derived(Rows): ...

    assert Rows.model is Both.model is Derived.model is FirstRow


def test_a_base_with_parameters_of_its_own_passes_the_model_on() -> None:
    class Rows(Base[int, SecondRow]): ...

    class Old(Base[int, Any]):
        model = FirstRow

    assert (Rows.model, Old.model) == (SecondRow, FirstRow)
    assert not hasattr(Base, "model")


def test_an_abstract_parameter_leaves_the_model_open() -> None:
    class Rows(ModelProjection[ReadModel]):
        model = SecondRow

    assert Rows.model is SecondRow


def test_a_model_that_is_not_the_parameter_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"is a ModelProjection\[FirstRow\] with model = .*SecondRow.*leave"):

        class Wrong(ModelProjection[FirstRow]):
            model = SecondRow

    class Rows(ModelProjection[FirstRow]):
        abstract = True

    with pytest.raises(DefinitionError, match=r"is a ModelProjection\[FirstRow\] with model"):

        class Other(Rows):
            model = SecondRow


def test_a_projection_without_a_model_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"has model = None; name the model of its rows: ModelProjection\[Some"):

        class Rows(ModelProjection):  # type: ignore[type-arg]
            @handles
            def renamed(self, row: Any, event: Renamed) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Unversioned, r"has the model Unversioned; derive that from enode_django\.models\.ReadModel"),
        (OfAnother, "has the model OfAnother; derive that from .*, and not from another model that has a table"),
        (OwnVersion, "has the model OwnVersion, whose own version stands for that of"),
    ],
)
def test_a_model_without_the_version_of_a_read_model_is_refused(wrong: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):

        class Rows(ModelProjection[wrong]):
            @handles
            def renamed(self, row: Any, event: Renamed) -> None: ...


def test_rows_are_made_by_the_handlers_that_say_so_or_else_by_all() -> None:
    class Rows(ModelProjection[FirstRow]):
        @handles
        def opened(self, row: FirstRow, event: Opened) -> None: ...

        @handles
        def renamed(self, row: FirstRow, event: Renamed) -> None: ...

    class Strict(Rows):
        @handles(creates=True)
        def opened(self, row: FirstRow, event: Opened) -> None: ...

    class Overriding(Strict):
        def opened(self, row: FirstRow, event: Opened) -> None: ...

    class Lax(Strict):
        @handles
        def opened(self, row: FirstRow, event: Opened) -> None: ...

    class Several(Strict):
        @handles(Reopened)
        def reopened(self, row: FirstRow, event: Reopened) -> None: ...

    assert makes_row(Rows) is makes_row(Lax) is None
    for cls, makes in {Strict: [True, True], Overriding: [True, True], Several: [True, False]}.items():
        is_made = makes_row(cls)
        assert is_made is not None
        assert [is_made(event) for event in (Opened(), Reopened())] == makes
        assert not is_made(Renamed())


@pytest.mark.parametrize("base", [Projection, ProcessManager])
def test_only_rows_of_aggregates_are_created_so(base: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Wrong.opened says creates=True, which is for the handlers of a Model"):

        class Wrong(base):  # type: ignore[misc]
            abstract = True

            @handles(creates=True)
            def opened(self, event: Opened) -> None: ...


@pytest.mark.parametrize("base", [ModelProjection, MultiProjection, Projection, ProcessManager[State]])
def test_a_class_that_is_refused_is_not_declared(base: Any) -> None:
    with pytest.raises(DefinitionError):

        class Wrong(base):  # type: ignore[misc]
            @handles(Renamed)
            def renamed(self, *given: Any) -> None: ...

    assert subscribers.declared_subscribers() == []
