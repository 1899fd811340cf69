"""Running processes whose states the code cannot read are reported before it goes live, without their values."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.utils import timezone

from enode_django.checks.subscribers import check_states
from enode_django.eventing import unreadable_states as module
from enode_django.eventing.registry import subscribers
from enode_django.eventing.state_types import EventState, StateType, state_type
from enode_django.models import ProcessState
from enode_django.serialization.plain import pack
from tests.following.processes import Placed, Sales

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "ada@example.org"


@dataclasses.dataclass(frozen=True)
class Money:
    cents: int


def running(key: str, *, has_ended: bool = False, has_begun: bool = True, **fields: Any) -> None:
    """Write what an earlier deployment has stored."""
    now = timezone.now()
    ProcessState.objects.create(
        subscriber="processes.sales",
        key=key,
        state=b"\x01" + pack(fields) if has_begun else b"",
        started_at=now if has_begun else None,
        ended_at=now if has_ended else None,
    )


def take(cls: Any, monkeypatch: pytest.MonkeyPatch) -> StateType:
    """Deploy another class of the state."""
    changed = state_type(cls, "Sales")
    monkeypatch.setattr(Sales, "_enode_state_type", changed)
    return changed


def said() -> list[str]:
    messages = check_states(None, databases=["default"])
    assert {message.id for message in messages} <= {"enode_django.W187"}
    texts = [f"{message.msg} {message.hint}" for message in messages]
    assert not any(SECRET in text for text in texts)
    return texts


def test_states_that_can_be_read_are_not_reported() -> None:
    running("o1", price=3, paid=1)
    running("o2", price=3, gone=SECRET)
    running("o3", has_begun=False)
    assert said() == []


def test_fields_that_had_another_type_are_named_without_their_values() -> None:
    for key in ("o1", "o2"):
        running(key, price=SECRET, rate=Decimal(2))
    (text,) = said()
    assert "cannot read the states of 2 running processes of" in text
    assert "Price of Sale had another type" in text


def test_a_value_object_that_has_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Billing:
        price: Money | None = None
        prices: list[Money] = dataclasses.field(default_factory=list)

    take(Billing, monkeypatch)
    running("o1", price={"cents": 5}, prices=[{"cents": 5}])
    assert said() == []
    running("o2", price={"amount": Decimal(5)}, prices=[{"cents": 5}, {"amount": Decimal(5)}])
    (text,) = said()
    assert "Price, prices of" in text


def test_a_state_that_post_init_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Strict:
        price: int = 0

        def __post_init__(self) -> None:
            if self.price > 5:
                raise ValueError(SECRET)

    take(Strict, monkeypatch)
    running("o1", price=6)
    (text,) = said()
    assert "__post_init__ of" in text


def test_a_state_of_the_other_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    running("o1", price=SECRET)
    assert isinstance(take(Placed, monkeypatch), EventState)
    (text,) = said()
    assert "a process keeps the kind of state that it began with" in text


def test_bytes_that_are_no_state_are_found() -> None:
    ProcessState.objects.create(
        subscriber="processes.sales", key="o1", state=SECRET.encode(), started_at=timezone.now()
    )
    (text,) = said()
    assert "Sale is not what they were made of" in text


def test_ended_processes_and_those_of_others_are_left_out() -> None:
    running("o1", has_ended=True, price=SECRET)
    running("o2", price=SECRET)
    ProcessState.objects.filter(key="o2").update(subscriber="somebody.else")
    assert said() == []


def test_the_oldest_and_the_newest_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    for key in ("o1", "o2", "o3"):
        running(key, price=SECRET)
    (found,) = module.unreadable_states(subscribers.instance(Sales))
    assert found.processes == 2


def test_a_database_without_the_table_says_nothing() -> None:
    running("o1", price=SECRET)
    try:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE enode_django_processstate RENAME TO elsewhere")
        assert said() == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO enode_django_processstate")
    assert len(said()) == 1


def test_manage_py_check_warns_with_the_database_and_not_without() -> None:
    running("o1", price=SECRET)
    assert "enode_django.W187" in [message.id for message in run_checks(databases=["default"])]
    assert "enode_django.W187" not in [message.id for message in run_checks()]
