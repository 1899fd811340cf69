"""The bases of the kinds of projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from django.db import models, router

from enode_django.domain.messages import DomainEvent
from enode_django.eventing.parameters import parameter_of
from enode_django.eventing.subscribers import BEGINNING, Subscriber, is_declared
from enode_django.exceptions import DefinitionError

Row = TypeVar("Row", bound=models.Model)


class BaseProjection(Subscriber):
    """The base of all projections: subscribers that keep rows, in the database of their models. ``volatile`` and
    ``indexes_after_load`` are for rebuilds."""

    abstract: ClassVar[bool] = True
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"volatile", "indexes_after_load"})
    volatile: ClassVar[Sequence[str]] = ()
    indexes_after_load: ClassVar[bool] = False

    @classmethod
    def _enode_complete(cls) -> None:
        if cls.start != BEGINNING:
            raise DefinitionError(f"{cls.__qualname__} has start = {cls.start!r}; half a past makes no projection")


def models_of(projection: BaseProjection) -> Sequence[type[models.Model]]:
    """Return the models that the projection names."""
    return [projection.model] if isinstance(projection, RowProjection) else getattr(projection, "models", ())


class RowProjection(BaseProjection, Generic[Row]):
    """The base of projections whose handlers are given a row, ``(self, row, event) -> None``. The model of the rows is
    the parameter of the class; ``model`` names it, too."""

    abstract: ClassVar[bool] = True
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"model"})
    _enode_arguments: ClassVar[tuple[str, ...]] = ("row", "event")
    _enode_may_create: ClassVar[bool] = True
    model: ClassVar[type[models.Model]]
    indexes_after_load: ClassVar[bool] = True

    @classmethod
    def _enode_complete(cls) -> None:
        super()._enode_complete()
        _take_model(cls)
        if not is_declared(cls):
            return
        model: Any = getattr(cls, "model", None)
        if not is_model(model):
            raise DefinitionError(
                f"{cls.__qualname__} has model = {model!r}; name the model of its rows: {_kind(cls)}[SomeModel]"
            )

    @property
    def database(self) -> str:
        return router.db_for_write(self.model)

    def delete(self, row: Row) -> None:
        """Delete the row when the event is handled. A later event that is handled makes a new row; if a handler says
        ``creates=True``, only an event of such a handler."""
        row._enode_deleted = True  # type: ignore[attr-defined]


def makes_row(projection: RowProjection[Any] | type[RowProjection[Any]]) -> Callable[[DomainEvent], bool] | None:
    """Return a function that returns True for an event that makes a missing row; None if every event makes it."""
    creators = projection._enode_creators
    if not creators:
        return None
    return lambda event: projection._enode_method_for(type(event)) in creators


def _take_model(cls: type[RowProjection[Any]]) -> None:
    """Take the model from the parameter of the class, or of a base, unless it is a variable or an abstract model."""
    parameter = parameter_of(cls, RowProjection)
    if not is_model(parameter) or parameter is models.Model or parameter._meta.abstract:
        return
    if getattr(cls, "model", parameter) is not parameter:
        raise DefinitionError(
            f"{cls.__qualname__} is a {_kind(cls)}[{parameter.__qualname__}] with model = {cls.model!r}; "
            "leave model out, or correct one of them"
        )
    cls.model = parameter


def is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, models.Model)


def _kind(cls: type[RowProjection[Any]]) -> str:
    """Return the name of the framework's own class that ``cls`` is derived from."""
    return next(base.__name__ for base in cls.__mro__ if base.__module__.startswith("enode_django."))
