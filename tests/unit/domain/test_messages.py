from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar
from uuid import UUID

import pytest
from hypothesis.vendor.pretty import pretty

from enode_django.domain.declarations import plain_of, schema_of
from enode_django.domain.fields import field_type
from enode_django.domain.messages import (
    Command,
    DomainEvent,
    EventStamp,
    event_restorer,
    is_stamped,
    message_of,
    restored_command,
    stamp_event,
)
from enode_django.domain.metadata import Metadata
from enode_django.domain.origin import KnownOrigin
from enode_django.domain.scalars import UnsupportedType
from enode_django.exceptions import DefinitionError, InvalidField, InvalidId


class Pay(Command):
    type_name = "unit.Pay"
    amount: Decimal
    note: str = ""
    tags: list[str] = dataclasses.field(default_factory=list)


class PayTwice(Pay):
    type_name = "unit.PayTwice"
    times: int = 2


class Paid(DomainEvent):
    type_name = "unit.Paid"
    amount: Decimal
    earlier: Earlier | None = None


@dataclasses.dataclass(frozen=True)
class Earlier:
    amount: Decimal


class Kind(Enum):
    GOOD = "good"


def test_command_is_keyword_only_frozen_and_gets_an_id() -> None:
    pay = Pay(aggregate_root_id="a", amount=Decimal(1))
    assert pay.id != Pay(aggregate_root_id="a", amount=Decimal(1)).id
    assert Pay(aggregate_root_id="a", id="mine", amount=Decimal(1)).id == "mine"
    with pytest.raises(TypeError):
        Pay("a", "id", Decimal(1))  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        pay.note = "x"  # type: ignore[misc]
    with pytest.raises(TypeError, match="amount"):
        Pay(aggregate_root_id="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown"):
        Pay(aggregate_root_id="a", amount=Decimal(1), unknown=1)  # type: ignore[call-arg]


def test_target_of_a_command_comes_first() -> None:
    twice = PayTwice("a", amount=Decimal(1), id="i")
    assert twice == PayTwice(aggregate_root_id="a", amount=Decimal(1), id="i")
    assert repr(twice).startswith("PayTwice(aggregate_root_id='a', id='i', amount=Decimal('1')")
    for command in (Pay, PayTwice):
        with pytest.raises(TypeError, match="positional"):
            command("a", Decimal(1))  # type: ignore[misc]
        with pytest.raises(TypeError, match="aggregate_root_id"):
            command(amount=Decimal(1))  # type: ignore[call-arg]
    with pytest.raises(InvalidId):
        Pay("", amount=Decimal(1))


def test_command_with_the_type_of_its_result_is_a_command_as_any_other(undeclared: None) -> None:
    class Ask(Command[list[int]]):
        type_name = "unit.Ask"
        question: str

    class AskTwice(Ask):
        type_name = "unit.AskTwice"

    ask = AskTwice("a", question="why", id="i")
    assert plain_of(ask) == {"question": "why"}
    assert restored_command(AskTwice, "i", "a", {"question": "why"}) == ask
    assert vars(ask) == {"aggregate_root_id": "a", "id": "i", "question": "why"}
    assert copy.copy(ask) == ask


def test_command_class_inherits_fields() -> None:
    twice = PayTwice(aggregate_root_id="a", amount=Decimal(1), times=3)
    assert plain_of(twice) == {"amount": Decimal(1), "note": "", "tags": [], "times": 3}


def test_mutable_defaults_are_made_anew() -> None:
    one, other = (Pay(aggregate_root_id="a", amount=Decimal(1)) for _ in range(2))
    assert one.tags == other.tags == []
    assert one.tags is not other.tags


def test_messages_compare_hash_copy_and_pickle_as_values() -> None:
    pay = Pay(aggregate_root_id="a", id="i", amount=Decimal(1), tags=["x"])
    assert pay == Pay(aggregate_root_id="a", id="i", amount=Decimal(1), tags=["x"])
    assert pay != PayTwice(aggregate_root_id="a", id="i", amount=Decimal(1), tags=["x"])
    assert pickle.loads(pickle.dumps(pay)) == copy.deepcopy(pay) == copy.copy(pay) == pay
    assert "amount=Decimal('1')" in repr(pay)


@pytest.mark.parametrize("message", [Pay("a", id="i", amount=Decimal(1)), Paid(amount=Decimal(1))])
def test_hypothesis_can_show_messages(message: Command | DomainEvent) -> None:
    assert "amount=Decimal('1')" in pretty(message)


@pytest.mark.parametrize("name", ["id", "aggregate_root_id", "type_name", "schema_version"])
def test_reserved_field_of_a_command_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=repr(name)):
        type("Bad", (Command,), {"__annotations__": {name: str}, "__module__": __name__})


@pytest.mark.parametrize(
    "name", ["id", "aggregate_root_id", "version", "timestamp", "command_id", "metadata", "type_name", "schema_version"]
)
def test_reserved_field_of_an_event_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=repr(name)):
        type("Bad", (DomainEvent,), {"__annotations__": {name: str}, "__module__": __name__})


def test_number_where_a_decimal_is_expected_says_how_to_make_one() -> None:
    with pytest.raises(
        InvalidField, match=r"Pay\.amount: expected Decimal, got 1\.5 \(float\); pass Decimal\(str\(value\)\)"
    ):
        Pay(aggregate_root_id="a", amount=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (date, "expected date, got '2026-01-31' (str); pass date.fromisoformat(value)"),
        (datetime, "expected datetime, got '2026-01-31' (str); pass datetime.fromisoformat(value)"),
        (UUID, "expected UUID, got '2026-01-31' (str); pass UUID(value)"),
        (int, "expected int, got '2026-01-31' (str)"),
    ],
)
def test_text_where_another_type_is_expected_says_how_to_read_it(kind: type, told: str) -> None:
    with pytest.raises(InvalidField) as raised:
        field_type(kind).check("2026-01-31")
    assert str(raised.value) == told


def test_forward_reference_resolves_when_it_is_first_needed() -> None:
    assert plain_of(Paid(amount=Decimal(1), earlier=Earlier(Decimal(2)))) == {
        "amount": Decimal(1),
        "earlier": {"amount": Decimal(2)},
    }


def test_annotation_that_cannot_be_resolved_names_the_class(undeclared: None) -> None:
    class Lost(Command):
        type_name = "unit.Lost"
        field: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match=r"Lost.*'Nowhere'"):
        Lost(aggregate_root_id="a", field=1)


@pytest.mark.parametrize(
    "annotation",
    [
        object, Any, list, dict, set, tuple, int | str, list[object], set[list[int]], dict[tuple[int, ...], int],
        complex, bytearray, type,
    ],
)  # fmt: skip
def test_type_that_cannot_be_stored_is_refused_with_class_and_field(annotation: Any, undeclared: None) -> None:
    cls = type("Bad", (Command,), {"__annotations__": {"field": annotation}, "__module__": __name__})
    with pytest.raises(UnsupportedType, match=r"Bad\.field"):
        schema_of(cls)


def test_dataclass_must_be_frozen_and_enum_values_plain() -> None:
    @dataclasses.dataclass
    class Loose:
        x: int

    class Odd(Enum):
        A = (1, 2)

    class Nothing(Enum):
        NONE = None

    for annotation, text in ((Loose, "frozen=True"), (Odd, "Odd.A"), (Nothing | None, "None")):
        with pytest.raises(UnsupportedType, match=text):
            field_type(annotation)


@dataclasses.dataclass(frozen=True)
class Computed:
    net: int
    gross: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass(frozen=True)
class WithoutRate:
    cents: int
    rate: dataclasses.InitVar[int] = 1


@dataclasses.dataclass(frozen=True)
class ReadFromText:
    cents: int

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "cents", int(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Computed, r"unexpected keyword argument 'gross'.*; make a computed field a property"),
        (WithoutRate, r"its InitVar 'rate' is not kept; make it a field"),
        (ReadFromText, r"missing a required argument: 'text'"),
    ],
)
def test_a_dataclass_that_cannot_be_made_of_its_fields_again_is_refused(kind: type, text: str) -> None:
    """Its values could be stored, but not be read."""
    with pytest.raises(UnsupportedType, match=text):
        field_type(kind)


def test_annotated_types_and_class_variables() -> None:
    class Marked(Command):
        type_name = "unit.Marked"
        limit: ClassVar[int] = 5
        amount: Annotated[int, "positive"] = 1

    assert plain_of(Marked(aggregate_root_id="a", amount=2)) == {"amount": 2}
    assert Marked.limit == 5


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True), (int, "1"), (int, 1.0), (bool, 1), (str, b"x"), (bytes, "x"), (Decimal, 1), (Decimal, 1.5),
        (Decimal, Decimal("nan")), (Decimal, Decimal("snan")), (float, float("nan")), (float, "1"), (float, 10**400),
        (float, 2**53 + 1), (datetime, datetime(2020, 1, 1)), (datetime, "2020-01-01"), (Kind, "good"),
        (list[int], (1,)), (list[int], [1, "2"]), (tuple[int, str], (1,)), (tuple[int, ...], [1]),
        (dict[str, int], {1: 1}), (dict[str, int], {"a": "b"}), (set[int], [1]), (Earlier, {"amount": Decimal(1)}),
        (int | None, "x"), (type(None), 0),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidField):
        field_type(annotation).check(value)


def test_values_are_brought_to_normal_form() -> None:
    class Text(str):
        pass

    class Money(Decimal):
        pass

    assert type(field_type(str).check(Text("x"))) is str
    assert type(field_type(Decimal).check(Money("1.50"))) is Decimal
    assert field_type(float).check(3) == 3.0
    assert type(field_type(float).check(3)) is float
    at = datetime.fromisoformat("2020-06-01T12:00:00+02:00")
    assert field_type(datetime).check(at).tzinfo is UTC
    assert field_type(list[Annotated[float, ""]]).check([1]) == [1.0]


def test_error_names_class_field_and_place() -> None:
    with pytest.raises(InvalidField, match=r"Pay\.tags: item 1: expected str, got 2 \(int\)"):
        Pay(aggregate_root_id="a", amount=Decimal(1), tags=["x", 2])  # type: ignore[list-item]
    with pytest.raises(InvalidId, match="aggregate_root_id ''"):
        Pay(aggregate_root_id="", amount=Decimal(1))
    with pytest.raises(InvalidId, match=r"pass str\(value\)"):
        Pay(aggregate_root_id=5, amount=Decimal(1))  # type: ignore[arg-type]


def test_restored_message_takes_defaults_for_missing_fields() -> None:
    pay = restored_command(Pay, "i", "a", {"amount": Decimal(2)})
    assert pay == Pay(id="i", aggregate_root_id="a", amount=Decimal(2))
    with pytest.raises(InvalidField, match=r"Pay\.amount is missing"):
        restored_command(Pay, "i", "a", {})
    with pytest.raises(InvalidField, match="no field 'x'"):
        restored_command(Pay, "i", "a", {"amount": Decimal(2), "x": 1})
    assert message_of(Paid, {"amount": Decimal(1), "of a newer version": 1}) == Paid(amount=Decimal(1))


def test_what_restores_the_events_of_a_class_is_compiled_once() -> None:
    assert event_restorer(Paid) is event_restorer(Paid)


def test_event_has_its_place_once_it_is_stamped() -> None:
    event = Paid(amount=Decimal(1))
    assert not is_stamped(event)
    at = datetime.now(UTC)
    stamp_event(event, EventStamp("a", 7, at, KnownOrigin("c", Metadata(user_id="ada"))), 2)
    assert (event.id, event.aggregate_root_id, event.version, event.timestamp, event.command_id) == (
        "a/7/2", "a", 7, at, "c",
    )  # fmt: skip
    assert event.metadata == Metadata(user_id="ada", correlation_id="c", causation_id="c")
    assert event == Paid(amount=Decimal(1))
    back = pickle.loads(pickle.dumps(event))
    assert (back, back.id, back.metadata) == (event, event.id, event.metadata)


@pytest.mark.parametrize("name", ["id", "aggregate_root_id", "version", "timestamp", "command_id", "metadata"])
def test_attribute_of_an_event_that_was_not_applied_says_so(name: str) -> None:
    class Fresh(DomainEvent):
        type_name = "messages.Fresh"

    with pytest.raises(AttributeError, match=r"Fresh\(\) was not applied yet"):
        getattr(Fresh(), name)
