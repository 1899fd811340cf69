"""Declarations of process managers with a state, and errors in such declarations."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

import pytest

from enode_django import (
    CommandCrashed,
    DomainEvent,
    Metadata,
    ModelProjection,
    ProcessManager,
    ends,
    handles,
    handles_crash,
    starts,
    upcasts,
)
from enode_django.domain.messages import EventStamp
from enode_django.domain.origin import KnownOrigin
from enode_django.eventing.code import code_fingerprint
from enode_django.eventing.process_managers import can_resend, has_state, mark_of
from enode_django.eventing.state_types import EVENT, FORMAT, DataclassState, EventState, joined_in, plain_state
from enode_django.exceptions import DefinitionError, InvalidField, MalformedMessage, UnknownMessageType
from enode_django.serialization.codec import decode_events, encode_stream
from enode_django.serialization.plain import pack
from tests.following.processes import (
    Deliver,
    Deliveries,
    Delivery,
    Finished,
    NotPaid,
    Paid,
    Parcels,
    Placed,
    Sale,
    Sales,
    Ship,
)


@dataclasses.dataclass(frozen=True)
class Frozen:
    price: int = 0


@dataclasses.dataclass
class Demanding:
    price: int


@dataclasses.dataclass
class Computed:
    price: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Odd:
    what: object = None


@dataclasses.dataclass
class Positive:
    price: int = 1

    def __post_init__(self) -> None:
        if self.price <= 0:
            raise ValueError("not positive")


def manager(state: Any, **body: Any) -> type[ProcessManager]:
    handler: Callable[..., None] = lambda self, state, event: None  # noqa: E731
    return type("Some", (ProcessManager,), {"name": "some", "state": state, "placed": starts(Placed)(handler), **body})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (dict, "give it a class marked with @dataclass"),
        (Sale(), "give it a class marked with @dataclass"),
        (Frozen, "which is frozen; its handlers change it"),
        (Demanding, r"Demanding\.price has no default; a process begins with the defaults of its state"),
        (Computed, "has init=False"),
    ],
)
def test_a_state_that_no_process_could_begin_with_is_refused(state: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        manager(state)


def test_a_field_that_cannot_be_stored_is_refused_when_it_is_first_needed() -> None:
    with pytest.raises(DefinitionError, match=r"Odd\.what: object cannot be stored"):
        DataclassState(Odd, "Some").read(b"\x01" + pack({}))


def test_a_state_needs_a_beginning_and_handlers_that_take_it() -> None:
    with pytest.raises(DefinitionError, match="none of its processes ever begins; mark a handler with @starts"):

        class Endless(ProcessManager):
            name = "some"
            state = Sale

            @handles(Paid, key=lambda event: event.order)
            def paid(self, sale: Sale, event: Paid) -> None: ...

    with pytest.raises(DefinitionError, match=r"cannot take \(self, state, event\)"):

        class Stateless(ProcessManager):
            name = "some"
            state = Sale

            @starts
            def placed(self, event: Placed) -> None: ...


def test_it_does_not_resend() -> None:
    with pytest.raises(DefinitionError, match="has a state and resends = True"):
        manager(Sale, resends=True)
    assert not can_resend(manager(Sale, resends=False)())
    assert has_state(Sales())


@pytest.mark.parametrize("mark", [starts(Placed), ends(Placed), handles(Placed, key=lambda event: "a")])
@pytest.mark.parametrize("base", [ProcessManager, ModelProjection])
def test_keys_beginnings_and_ends_are_for_states(base: type, mark: Any) -> None:
    handler: Callable[..., None] = lambda self, event: None  # noqa: E731
    with pytest.raises(DefinitionError, match="which are for process managers with a state"):
        type("Some", (base,), {"name": "some", "placed": mark(handler)})


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: starts(Placed, key="order"), r"starts\(\) got key='order'; give it a function"),
        (lambda: ends(Placed, when=True), r"ends\(\) got when=True; give it a function"),
        (lambda: starts(Sale), r"starts\(\) takes classes of events or domain exceptions"),
        (lambda: handles_crash(Ship, key=5), r"handles_crash\(\) got key=5; give it a function"),
    ],
)
def test_a_decorator_names_what_is_wrong(call: Callable[[], Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        call()


@pytest.mark.parametrize("second", [starts(Placed), ends(Placed), handles(Placed), handles_crash(Ship)])
@pytest.mark.parametrize("first", [starts(Placed), ends(Placed)])
def test_a_method_has_one_mark(first: Any, second: Any) -> None:
    """The second one would take the place of the first: a process that begins and ends with an event would not end."""
    with pytest.raises(DefinitionError, match="which is marked already; a method takes one of @handles, @starts"):
        second(first(lambda self, sale, event: None))


@pytest.mark.parametrize("mark", [handles, handles(Placed), starts, ends(Placed), handles_crash(Ship)])
def test_a_function_outside_of_classes_is_refused_since_nobody_would_call_it(mark: Any) -> None:
    def mail(event: Placed) -> None: ...

    with pytest.raises(DefinitionError, match=r"mail\(\), which no subscriber calls; mark a method of a subscriber"):
        mark(mail)


def test_one_method_handles_refusals_and_crashes() -> None:
    assert (mark_of(Deliveries, "failed").ends, Deliveries._enode_crashes) == (True, (Deliver,))
    assert Deliveries._enode_method_for(NotPaid) == Deliveries._enode_method_for(CommandCrashed) == "failed"


@pytest.mark.parametrize(
    ("outer", "inner", "why"),
    [
        (ends(Placed), handles_crash(Ship, ends=True), "which has a key or ends the process; say so in @ends"),
        (starts(Placed), handles_crash(Ship), "which is marked already"),
        (handles_crash(Ship), handles_crash(Ship), "which is marked already"),
        (handles(Placed, Paid, join=True), handles_crash(Ship), r"give it two classes of events"),
        (handles(Placed, join=True), lambda method: method, r"handles\(join=True\) marks .*give it two classes"),
    ],
)
def test_marks_that_do_not_go_together_are_refused(outer: Any, inner: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        outer(inner(lambda self, sale, event: None))


@pytest.mark.parametrize(
    ("key", "state", "why"),
    [
        ("order", None, r"Some has a key and no state; derive it from ProcessManager\[SomeState\]"),
        ("an order", Sale, "Some has key='an order'; give it the name of a field, or a function"),
        (5, Sale, "Some has key=5; give it the name of a field, or a function"),
    ],
)
def test_a_key_of_the_class_is_a_field_or_a_function_and_needs_a_state(key: Any, state: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        types.new_class("Some", (ProcessManager,), {"key": key}, lambda body: body.update(abstract=True, state=state))


def test_a_method_that_is_overridden_keeps_its_route() -> None:
    class Later(Sales):
        abstract = True

        def paid(self, sale: Sale, event: Paid) -> None: ...  # type: ignore[override]

    assert mark_of(Later, "paid").key is mark_of(Sales, "paid").key is not None
    assert (mark_of(Later, "placed").starts, mark_of(Later, "finished").ends) == (True, True)
    assert Later._enode_method_for(Finished) == "finished"


def test_what_begins_and_ends_a_process_is_code() -> None:
    """Parked events are retried when the beginning or the end of a process has changed."""

    def of(mark: Any, state: type = Sale) -> str:
        handler: Callable[..., None] = lambda self, sale, event: None  # noqa: E731
        body = {
            "name": "some",
            "abstract": True,
            "state": state,
            "placed": starts(Placed)(lambda self, sale, event: None),
        }
        return code_fingerprint(type("Some", (ProcessManager,), {**body, "paid": mark(handler)})())

    one = of(ends(Paid, when=lambda sale: sale.paid == 2))
    assert one == of(ends(Paid, when=lambda sale: sale.paid == 2)) != ""
    others = [
        of(ends(Paid, when=lambda sale: sale.paid == 3)),
        of(ends(Paid)),
        of(starts(Paid)),
        of(handles(Paid)),
        of(ends(Paid, key=lambda event: event.order, when=lambda sale: sale.paid == 2)),
        of(ends(Paid, when=lambda sale: sale.paid == 2), Other),
    ]
    assert len({one, *others}) == 7


@dataclasses.dataclass
class Other:
    paid: str = ""


def test_a_state_comes_back_as_it_was() -> None:
    kind = DataclassState(Sale, "Some")
    sale = Sale(price=3, payments=["a"], rate=Decimal("1.50"))
    assert kind.read(kind.write(sale)) == sale
    assert kind.begin("o1", "order", None) == (Sale(), b"")


def test_a_field_that_was_added_gets_its_default_and_one_of_newer_code_is_kept() -> None:
    kind = DataclassState(Sale, "Some")
    stored = b"\x01" + pack({"price": 3, "of_newer_code": [1]})
    sale = kind.read(stored)
    assert sale == Sale(price=3)
    sale.paid = 2
    assert plain_state(kind.write(sale, stored)) == {
        "price": 3,
        "paid": 2,
        "payments": [],
        "rate": Decimal(1),
        "of_newer_code": [1],
    }


@pytest.mark.parametrize("packed", [b"\x02" + pack({}), b"\x01" + pack([]), b"{}"])
def test_bytes_that_are_no_state_are_refused(packed: bytes) -> None:
    with pytest.raises(MalformedMessage, match="which is not a format of ours"):
        DataclassState(Sale, "Some").read(packed)


def test_a_value_that_does_not_fit_its_field_is_refused() -> None:
    kind = DataclassState(Sale, "Some")
    with pytest.raises(InvalidField, match=r"Sale\.price"):
        kind.write(Sale(price="much"))  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match=r"Sale\.price"):
        kind.read(b"\x01" + pack({"price": "much"}))
    with pytest.raises(InvalidField, match=r"Positive refuses .*: not positive"):
        DataclassState(Positive, "Some").read(b"\x01" + pack({"price": -1}))


def test_the_parameter_of_the_class_is_its_state() -> None:
    class Later(Parcels):
        abstract = True

    class Typed(ProcessManager[Sale]):
        abstract = True

    assert (Parcels.state, Later.state, Typed.state, ProcessManager.state) == (Placed, Placed, Sale, None)
    assert (has_state(Parcels()), can_resend(Parcels())) == (True, False)
    with pytest.raises(DefinitionError, match=r"a ProcessManager\[Sale\] with state = .*Delivery.*; leave state out"):

        class Torn(ProcessManager[Sale]):
            state = Delivery


def test_a_process_that_keeps_an_event_begins_with_that_event_alone() -> None:
    with pytest.raises(DefinitionError, match="keeps the Placed that begins a process, but NotPaid begins one, too"):

        class Torn(ProcessManager[Placed]):
            name = "some"

            @starts
            def placed(self, order: Placed, event: Placed | NotPaid) -> None: ...


def kept(event: DomainEvent) -> bytes:
    _, packed = EventState(type(event)).begin("o1", "order", event)
    return packed


def stored_event(price: int = 3) -> Placed:
    (event,) = decode_events(encode_stream([Placed(price=price)]), STAMP)
    assert isinstance(event, Placed)
    return event


STAMP = EventStamp("o1", 7, datetime(2026, 1, 2, 3, 4, 5, 6, UTC), KnownOrigin("c1", Metadata(user_id="ada")))


def test_an_event_that_is_kept_comes_back_with_its_place_time_and_origin() -> None:
    kind, event = EventState(Placed), stored_event()
    kind.check()
    began, packed = kind.begin("o1", "order", event)
    again = kind.read(packed)
    assert (began, again, again.id, again.version, again.timestamp) == (event, event, "o1/7/0", 7, STAMP.timestamp)
    assert (again.command_id, again.metadata) == ("c1", event.metadata)
    joined = kind.write(again, packed, ["processes.Paid"])
    assert (joined_in(joined), kind.read(joined)) == (["processes.Paid"], event)
    assert kind.write(again, joined) == joined


class Ordered(DomainEvent):
    type_name = "processes.Ordered"
    schema_version = 2
    cents: int


@upcasts(Ordered, from_version=1)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": 100 * fields["price"]}


def kept_event(schema_version: int, fields: dict[str, Any]) -> bytes:
    place = plain_state(kept(stored_event()))[EVENT]
    return FORMAT + pack({**fields, EVENT: {**place, "type": "processes.Ordered", "schema_version": schema_version}})


def test_an_event_that_is_kept_is_upcast_like_a_stored_one() -> None:
    kind, packed = EventState(Ordered), kept_event(1, {"price": 3})
    assert kind.read(packed) == Ordered(cents=300)
    assert kind.read(kind.write(kind.read(packed), packed, ["x"])) == Ordered(cents=300)


def test_an_event_of_newer_code_waits_for_that_code() -> None:
    with pytest.raises(UnknownMessageType, match=r"'processes\.Ordered' comes with schema version 3"):
        EventState(Ordered).read(kept_event(3, {"dollars": 3}))


def test_a_state_of_the_other_kind_is_refused() -> None:
    packed = DataclassState(Sale, "Some").write(Sale(price=3))
    with pytest.raises(MalformedMessage, match="is not an event; a process keeps the kind of state that it began with"):
        EventState(Placed).read(packed)
    with pytest.raises(MalformedMessage, match="is an event, not a Sale; a process keeps the kind of state"):
        DataclassState(Sale, "Some").read(kept(stored_event()))
    with pytest.raises(MalformedMessage, match=r"the state is Placed\(price=3\), not a Paid; a process keeps"):
        EventState(Paid).read(kept(stored_event()))


@pytest.mark.parametrize("broken", [{"type": ["x"]}, {"metadata": None}, {"version": {}, "timestamp": "now"}, 5, []])
def test_an_event_that_is_kept_and_broken_is_refused(broken: Any) -> None:
    plain = plain_state(kept(stored_event()))
    place = {**plain[EVENT], **broken} if isinstance(broken, dict) else broken
    with pytest.raises(MalformedMessage, match="an event cannot be made of"):
        EventState(Placed).read(FORMAT + pack({**plain, EVENT: place}))


class Tagged(DomainEvent):
    type_name = "processes.Tagged"
    tags: list[str]


def test_a_handler_that_changes_a_list_of_the_event_changes_nothing_of_the_state() -> None:
    (event,) = decode_events(encode_stream([Tagged(tags=["a"])]), STAMP)
    state, packed = EventState(Tagged).begin("o1", "", event)
    state.tags.append("b")
    assert EventState(Tagged).read(EventState(Tagged).write(state, packed)) == event == Tagged(tags=["a"])


C = TypeVar("C")
S = TypeVar("S")


def test_the_parameter_for_the_state_is_followed_through_generic_classes() -> None:
    class ForCommand(ProcessManager, Generic[C]):
        abstract = True

    class Stateless(ForCommand[Ship]):
        abstract = True

        @handles
        def placed(self, event: Placed) -> None: ...

    class Kept(ProcessManager[Placed], Generic[C]):
        abstract = True

    class OfCommand(Kept[Ship]): ...

    class Open(ProcessManager[S], Generic[C, S]):
        abstract = True

        @starts
        def placed(self, state: S, event: Placed) -> None: ...

    class Closed(Open[Ship, Sale]):
        abstract = True

    assert (Stateless.state, OfCommand.state, Open.state, Closed.state) == (None, Placed, None, Sale)
    with pytest.raises(DefinitionError, match="Undecided does not say which state ~S is; derive it from a base with"):

        class Undecided(Open[Ship, S]):
            name = "some"


def test_a_parameter_that_says_nothing_is_no_state() -> None:
    class Whatever(ProcessManager[Any]):
        abstract = True

        @handles
        def placed(self, event: Placed) -> None: ...

    class Nothing(ProcessManager[None]):
        abstract = True

        @handles
        def placed(self, event: Placed) -> None: ...

    assert (Whatever.state, Nothing.state) == (None, None)


def test_the_class_of_a_state_is_not_quoted() -> None:
    with pytest.raises(DefinitionError, match="a ProcessManager of 'Placed' in quotes; define the class above"):

        class Quoted(ProcessManager["Placed"]):
            state = Placed
