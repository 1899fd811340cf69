"""An error in a handler's signature is reported when it is defined, not when the first event arrives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django import Command, DomainEvent, ProcessManager, Projection, event_handler, handles
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.exceptions import DefinitionError


class Signed(DomainEvent):
    type_name = "signatures.Signed"


def test_a_method_that_takes_too_much_is_refused_with_what_it_gets() -> None:
    with pytest.raises(DefinitionError, match=r"cannot take \(self, event\): missing a required argument: 'event'"):

        class Wrong(Projection):
            abstract = True

            @handles(Signed)
            def signed(self, row: object, event: Signed) -> None: ...


def test_an_event_handler_that_takes_nothing_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"cannot take \(event\)"):
        event_handler(Signed, name="signatures.nothing")(lambda: None)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize("base", [Projection])
def test_a_projections_handler_that_yields_would_do_nothing_and_is_refused(base: type[Projection]) -> None:
    with pytest.raises(DefinitionError, match="yields, so that calling it does nothing"):

        class Yielding(base):  # type: ignore[misc, valid-type]
            abstract = True

            @handles(Signed)
            def signed(self, event: Signed) -> Iterator[None]:
                yield None


def test_a_process_managers_handler_may_yield_be_static_or_take_more_than_it_gets() -> None:
    class Fine(ProcessManager):
        abstract = True

        @handles(Signed)
        def signed(self, event: Signed, *more: object, flag: bool = False) -> Iterator[Command]:
            yield from ()

    class Static(ProcessManager):
        abstract = True

        @handles(Signed)
        @staticmethod
        def signed(event: Signed) -> None: ...

    assert Fine._enode_methods == Static._enode_methods == {Signed: "signed"}


def test_an_async_handler_is_refused() -> None:
    async def late(event: Signed) -> None: ...

    with pytest.raises(DefinitionError, match="is async; a handler is a plain function"):
        event_handler(Signed, name="signatures.late")(late)  # type: ignore[arg-type]


def test_a_second_handler_of_the_same_name_replaces_none_unless_it_is_the_same_one() -> None:
    group = EventHandlerGroup("signatures.group")

    def one(event: DomainEvent) -> None: ...

    def other(event: DomainEvent) -> None: ...

    for function in (one, one, other):
        group.add(EventHandler(Signed, "signatures.same", 1, function, "now"))
    assert [handler.function for handler in group.handlers] == [one, other]
    assert group.ambiguous == ["signatures.same"]
