"""The classes that a handler handles are read from its annotation. The decorator's classes must not contradict it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

import pytest

from enode_django import (
    Command,
    CommandCrashed,
    DomainEvent,
    DomainException,
    ProcessManager,
    Projection,
    applies,
    handles,
)
from enode_django.eventing import event_handlers, subscribers
from enode_django.eventing.event_handlers import declared_groups, event_handler
from enode_django.exceptions import DefinitionError

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


class Opened(DomainEvent):
    type_name = "annotated.Opened"


class Closed(DomainEvent):
    type_name = "annotated.Closed"


class Refused(DomainException):
    type_name = "annotated.Refused"


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without declarations. Forget those of the test after it."""
    monkeypatch.setattr(subscribers, "_declared", [])
    monkeypatch.setattr(event_handlers, "_groups", {})


class Manager(ProcessManager):
    abstract = True

    @handles
    def opened(self, event: Opened) -> Iterator[Command]:
        yield from ()

    @handles()
    def refused(self, refusal: Refused | Closed, *more: object, flag: bool = False) -> Iterator[Command]:
        yield from ()


def test_methods_handle_what_their_annotations_name() -> None:
    assert Manager._enode_methods == {Opened: "opened", Refused: "refused", Closed: "refused"}


def test_of_a_row_and_an_event_the_event_counts() -> None:
    @handles
    def handler(self: Any, row: Projection, event: Union[Opened, Closed], more: int = 0) -> None: ...  # noqa: UP007

    assert handler._enode_handles == (Opened, Closed)  # type: ignore[attr-defined]


def test_a_static_method_is_read_too() -> None:
    @handles
    @staticmethod
    def handler(event: Opened) -> None: ...

    assert handler._enode_handles == (Opened,)  # type: ignore[attr-defined]


def test_a_class_that_is_local_to_a_function_is_found() -> None:
    class Local(DomainEvent):
        type_name = "annotated.Local"

    class Ledger(Projection):
        abstract = True

        class Inner(DomainEvent):
            type_name = "annotated.Inner"

        @handles
        def local(self, event: Local | Inner) -> None: ...

    assert Ledger._enode_methods == {Local: "local", Ledger.Inner: "local"}


def test_classes_that_the_annotation_takes_may_be_named_too() -> None:
    @handles(Opened, Closed)
    def handler(self: Any, event: DomainEvent) -> None: ...

    assert handler._enode_handles == (Opened, Closed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [(Closed,), (Opened, Closed), (DomainEvent,)])
def test_a_class_that_the_annotation_does_not_take_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"@handles\(\w+\) marks .*annotated with Opened; name the same class"):

        @handles(*given)
        def handler(self: Any, event: Opened) -> None: ...


def test_an_annotation_that_cannot_be_resolved_is_no_contradiction_but_names_nothing() -> None:
    @handles(Opened)
    def named(self: Any, event: Missing) -> None: ...

    assert named._enode_handles == (Opened,)
    with pytest.raises(DefinitionError, match="name 'Missing' is not defined; write @handles"):

        @handles
        def unnamed(self: Any, event: Missing) -> None: ...


def test_annotations_that_name_no_events_are_refused() -> None:
    with pytest.raises(DefinitionError, match="does not say what it takes; annotate its parameter"):

        @handles
        def nothing(self: Any, event) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(DefinitionError, match="annotated with int; annotate it with classes of DomainEvent"):

        @handles
        def number(self: Any, event: Opened | int) -> None: ...

    with pytest.raises(DefinitionError, match="write @handles_crash"):

        @handles
        def crashed(self: Any, crash: CommandCrashed) -> None: ...


def test_an_event_handler_handles_what_its_annotation_names() -> None:
    @event_handler
    def mail(event: Opened | Refused) -> None: ...

    @event_handler(priority=1)
    def other(event: Closed) -> None: ...

    assert [[one.followed for one in group.handlers] for group in declared_groups()] == [[Opened, Refused], [Closed]]
    with pytest.raises(DefinitionError, match=r"@event_handler\(Closed\) marks .*annotated with Opened"):

        @event_handler(Closed)  # type: ignore[arg-type]
        def wrong(event: Opened) -> None: ...


def test_a_mark_of_aggregates_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"Doors\.opened\(\) is marked with @applies, .* with @handles$"):

        class Doors(ProcessManager):
            name = "annotated.doors"

            @applies
            def opened(self, event: Opened) -> None: ...
