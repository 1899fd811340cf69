"""An event that no aggregate applies is found by a check."""

from __future__ import annotations

import pytest

from enode_django import AggregateRoot, DomainEvent, applies, handles
from enode_django.checks.definitions import check_definitions
from enode_django.exceptions import DefinitionError

pytestmark = pytest.mark.usefixtures("undeclared")


class Opened(DomainEvent):
    type_name = "applied.Opened"


class Account(AggregateRoot):
    type_name = "applied.Account"

    @applies(Opened)
    def _opened(self, event: Opened) -> None: ...


def warned_of(name: str) -> list[str]:
    return [
        str(one.hint) for one in check_definitions(None) if one.id == "enode_django.W028" and f".{name} " in one.msg
    ]


def test_an_event_that_no_aggregate_applies_is_named_with_the_aggregates_of_its_app() -> None:
    class Forgotten(DomainEvent):
        type_name = "applied.Forgotten"

    (hint,) = warned_of("Forgotten")
    assert "a method of Account with @applies, and annotate its parameter with Forgotten" in hint

    class Mindful(AggregateRoot):
        type_name = "applied.Mindful"

        @applies(Forgotten)
        def _forgotten(self, event: Forgotten) -> None: ...

    assert warned_of("Forgotten") == []


def test_a_method_for_a_base_applies_what_is_derived_and_a_base_need_not_be_applied() -> None:
    class Reopened(Opened):
        type_name = "applied.Reopened"

    class Base(DomainEvent):
        type_name = "applied.Base"

    class Between(Base):
        type_name = "applied.Between"

    class Closed(Between):
        type_name = "applied.Closed"

    assert warned_of("Reopened") == []
    assert [warned_of(name) != [] for name in ("Base", "Between", "Closed")] == [True] * 3

    class Child(Account):
        type_name = "applied.Child"

        @applies(Closed)
        def _closed(self, event: Closed) -> None: ...

    assert [warned_of(name) for name in ("Base", "Between", "Closed")] == [[]] * 3


def test_an_event_may_say_that_it_is_not_applied() -> None:
    class Retired(DomainEvent):
        type_name = "applied.Retired"
        applied = False

    class WithField(DomainEvent):
        type_name = "applied.WithField"
        applied: bool = False

    assert warned_of("Retired") == []
    assert len(warned_of("WithField")) == 1


def test_events_of_an_app_without_aggregates_are_let_be() -> None:
    class Foreign(DomainEvent):
        type_name = "elsewhere.Foreign"

    assert warned_of("Foreign") == []


def test_a_mark_of_subscribers_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"Marked\.opened\(\) is marked with @handles, .* with @applies$"):

        class Marked(AggregateRoot):
            type_name = "applied.Marked"

            @handles
            def opened(self, event: Opened) -> None: ...
