"""The classes that a handler takes are read from the annotation of its parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, Protocol, TypeVar, Union

import pytest

from enode_django import AggregateRoot, DomainEvent, applies
from enode_django.domain.aggregate import applied_events
from enode_django.domain.annotations import handled_classes, is_method
from enode_django.exceptions import DefinitionError

if TYPE_CHECKING:
    from nowhere import Nowhere

pytestmark = pytest.mark.usefixtures("undeclared")


class One(DomainEvent):
    type_name = "annotations.One"


class Two(DomainEvent):
    type_name = "annotations.Two"


class OneMore(One):
    type_name = "annotations.OneMore"


class Named(Protocol):
    name: str


AnyEvent = TypeVar("AnyEvent", bound=DomainEvent)


class Methods:
    def one(self, event: One) -> None: ...
    def either(self, event: One | Two) -> None: ...
    def union(self, event: Union["One", Two]) -> None: ...  # noqa: UP007, UP037
    def optional(self, event: Optional[One]) -> None: ...  # noqa: UP045
    def named(self, event: Named) -> None: ...
    def any(self, event: Any) -> None: ...
    def variable(self, event: AnyEvent) -> None: ...
    def unresolved(self, event: Nowhere) -> None: ...
    def elsewhere(self, event: One, context: Nowhere) -> Nowhere: ...
    def number(self, event: int) -> None: ...
    def bare(self, event): ...  # type: ignore[no-untyped-def]
    def nothing(self) -> None: ...

    def several(self, event: list[One]) -> None: ...

    @staticmethod
    def static(event: Two) -> None: ...


def function(event: Two) -> None: ...


def classes_of(handler: Callable[..., Any], *given: type) -> set[type]:
    return set(handled_classes("applies", handler, given, DomainEvent))


def test_classes_are_those_of_the_annotation() -> None:
    assert classes_of(Methods.one) == classes_of(Methods.elsewhere) == classes_of(Methods().one) == {One}
    assert classes_of(Methods.either) == classes_of(Methods.union) == {One, Two}
    assert classes_of(function) == classes_of(vars(Methods)["static"]) == {Two}


def test_a_wrapped_method_is_read_as_what_it_wraps() -> None:
    @functools.wraps(Methods.one)
    def wrapper(*args: Any) -> None: ...

    assert classes_of(wrapper) == {One}


def test_classes_of_a_function_are_read_where_the_annotation_is_no_text() -> None:
    class Local(DomainEvent):
        type_name = "annotations.Local"

    def method(event: Any) -> None: ...

    method.__annotations__["event"] = Local  # as in a module without `from __future__ import annotations`
    assert classes_of(method) == {Local}


def test_local_classes_are_found_while_a_method_is_being_defined() -> None:
    class Local(DomainEvent):
        type_name = "annotations.Local"

    class Good(AggregateRoot):
        type_name = "annotations.Good"

        class Inner(DomainEvent):
            type_name = "annotations.Inner"

        @applies
        def _local(self, event: Local | Inner) -> None: ...

    assert set(applied_events(Good)) == {Local, Good.Inner}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unresolved", "cannot be resolved here: name 'Nowhere' is not defined"),
        ("number", "annotated with int; annotate it with classes of DomainEvent"),
        ("optional", "annotated with NoneType"),
        ("named", "annotated with Named"),
        ("any", "annotated with"),
        ("variable", "annotated with"),
        ("bare", "does not say what it takes; annotate its parameter with a class, or write @applies"),
        ("nothing", "does not say what it takes"),
        ("several", r"annotated with list\[.*One\]; annotate it"),
    ],
)
def test_an_annotation_that_says_no_classes_is_refused(name: str, told: str) -> None:
    with pytest.raises(DefinitionError, match=rf"Methods\.{name}\(\).*{told}"):
        classes_of(getattr(Methods, name))


@pytest.mark.parametrize("name", ["one", "either", "union", "named", "any", "variable", "unresolved", "bare"])
def test_given_classes_may_be_those_of_the_annotation_or_derive_from_them(name: str) -> None:
    method = getattr(Methods, name)
    assert classes_of(method, One, OneMore) == {One, OneMore}


@pytest.mark.parametrize(
    ("name", "given"), [("one", Two), ("one", DomainEvent), ("number", One), ("either", DomainEvent)]
)
def test_a_given_class_that_the_annotation_excludes_is_refused(name: str, given: type) -> None:
    with pytest.raises(DefinitionError, match=rf"@applies\({given.__name__}\) marks Methods\.{name}\(\)"):
        classes_of(getattr(Methods, name), given)


def test_appliers_say_their_events_once() -> None:
    class Thing(AggregateRoot):
        type_name = "annotations.Thing"
        seen: list[str] = []

        @applies
        def _one(self, event: One) -> None:
            self.seen.append("one")

        @applies()
        def _two(self, event: Two) -> None:
            self.seen.append("two")

    thing = Thing("a")
    for event in (One(), Two(), OneMore()):
        thing.apply(event)
    assert thing.seen == ["one", "two", "one"]


def test_methods_are_told_from_functions_by_where_they_are_defined() -> None:
    def local(self: Any) -> None: ...

    class Local:
        def method(this) -> None: ...  # noqa: N805, RUF100

    assert is_method(Methods.one)
    assert is_method(Local.method)
    assert not any(map(is_method, (function, local, Methods().one, functools.partial(Methods.one), lambda self: None)))
