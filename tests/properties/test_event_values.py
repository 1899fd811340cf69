"""An event is stored with the values that it had when it was applied, whatever appliers and handlers do to it later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.bus.results import CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.declarations import schema_of
from enode_django.domain.fields import field_type
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent, is_stamped, message_of
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import InvalidField
from enode_django.repository.loading import AggregateLoader
from enode_django.serialization.codec import decode_events, encode_stream
from tests.properties.test_codec import typed_values
from tests.races.harness import Worker


@dataclasses.dataclass(frozen=True)
class Box:
    names: list[str]
    inner: dict[str, list[int]]


class Held(DomainEvent):
    type_name = "properties.Held"
    texts: list[str]
    amounts: dict[str, Decimal]
    numbers: set[int]
    rows: list[list[int]]
    lists: dict[str, list[int]]
    pair: tuple[list[int], str]
    several: tuple[dict[str, int], ...]
    box: Box
    boxes: list[Box]
    maybe: list[int] | None = None
    fixed: frozenset[int] = frozenset({1})
    """Nobody can change it."""


class Changed(DomainEvent):
    type_name = "properties.Changed"


class Holder(AggregateRoot):
    """Keeps what an event holds, and changes it in place at the next."""

    type_name = "properties.Holder"
    texts: list[str] = []
    amounts: dict[str, Decimal] = {}
    numbers: set[int] = set()
    rows: list[list[int]] = [[0]]
    lists: dict[str, list[int]] = {"": [0]}
    pair: tuple[list[int], str] = ([0], "")
    several: tuple[dict[str, int], ...] = ({},)
    box: Box = Box(["z"], {"": [0]})
    boxes: list[Box] = [Box([], {})]
    maybe: list[int] | None = None
    fixed: frozenset[int] = frozenset()

    @applies(Held)
    def _held(self, event: Held) -> None:
        for name in schema_of(type(self)).names:
            setattr(self, name, getattr(event, name))
        self.texts.append("by its applier")

    @applies(Changed)
    def _changed(self, event: Changed) -> None:
        for name in schema_of(type(self)).names:
            change(getattr(self, name))


def change(value: Any) -> None:
    """Add something to whatever can be changed."""
    for held in list(mutable(value)):
        if isinstance(held, set):
            held.add(len(held) + 1_000)
        elif isinstance(held, list) and held and not any(isinstance(item, list | Box) for item in held):
            held.append("new" if isinstance(held[0], str) else len(held))
        elif isinstance(held, dict) and held and all(type(item) is int for item in held.values()):
            held[f"{len(held)}"] = 1


def mutable(value: Any) -> Iterator[Any]:
    """Lists, dictionaries and sets in a value, itself included."""
    if isinstance(value, list | dict | set):
        yield value
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from mutable(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from mutable(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from mutable(getattr(value, field.name))


class Play(Command):
    """``steps``: what its handler does, in order."""

    type_name = "properties.Play"
    steps: list[str]
    count: int = 1


def held(count: int) -> Held:
    return Held(
        texts=["a"] * count,
        amounts={"a": Decimal(count)},
        numbers={*range(count)},
        rows=[[count]] * count,
        lists={"a": [count]},
        pair=([count], "b"),
        several=({"a": count},) * count,
        box=Box(["a"], {"b": [count]}),
        boxes=[Box(["a"], {"b": [count]})] * count,
        maybe=[count] if count else None,
    )


def play(command: Play, context: CommandContext) -> None:
    holder = context.find(Holder)
    if holder is None:
        holder = Holder(command.aggregate_root_id)
        context.add(holder)
    event = held(command.count)
    for step in command.steps:
        if step == "hold":
            event = held(command.count)
            holder.apply(event)
        elif step == "change":
            holder.apply(Changed())
        else:  # the handler changes a value that it has passed on
            change([getattr(event, name) for name in schema_of(Held).names])


STEPS = st.lists(st.sampled_from(["hold", "change", "change what was given"]), max_size=5)
COMMANDS = st.lists(st.tuples(STEPS, st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


def handlers() -> HandlerTable:
    table = HandlerTable()
    table.add(Play, play)
    return table


def state(holder: Any) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in schema_of(Holder).names}


@settings(max_examples=100, deadline=None)
@given(COMMANDS)
def test_memory_equals_replay_after_any_commands(commands: list[tuple[list[str], int, bool]]) -> None:
    store = MemoryEventStore()
    worker = Worker(store)
    worker.processor._handlers = handlers()
    for steps, count, stored in commands:
        worker.send(Play("x", steps=steps, count=count))
        worker.handle()
        if stored:
            worker.settle()
    worker.settle()
    assert {answer.status for answer in worker.answers.values()} <= {
        CommandStatus.SUCCESS,
        CommandStatus.NOTHING_CHANGED,
    }
    replayed = AggregateLoader(store).load("x")
    if replayed is not None:
        assert state(worker.processor._cache.slots["x"].aggregate) == state(replayed)


@settings(max_examples=200, deadline=None)
@given(typed_values)
def test_a_copy_and_what_is_stored_share_nothing_that_can_be_changed(typed_value: tuple[Any, Any]) -> None:
    annotation, value = typed_value
    kind = field_type(annotation)
    checked = kind.check(value)
    copied = kind.copy(checked) if kind.copy else checked
    checked_again = kind.check(checked) if kind.copy else checked
    plain = kind.encode(checked) if kind.encode else checked
    assert copied == checked == checked_again
    assert type(copied) is type(checked) is type(checked_again)
    parts = [{id(part) for part in mutable(one)} for one in (checked, copied, plain, checked_again)]
    assert len(set().union(*parts)) == sum(map(len, parts))
    assert bool(parts[0]) <= (kind.copy is not None)


def test_an_event_shows_what_it_held_when_it_was_applied() -> None:
    holder = Holder("x")
    event = held(2)
    holder.apply(event)
    holder.apply(Changed())
    assert event == held(2)
    assert holder.texts == ["a", "a", "by its applier", "new"]
    event.texts.append("by its maker")
    stored = decode_events(encode_stream([event]), event._enode_stamp)
    assert stored == [held(2)]
    assert "by its maker" not in holder.texts


@pytest.mark.parametrize(
    "spoil",
    [
        lambda event: event.texts.append(1),
        lambda event: event.amounts.update(b=1.5),
        lambda event: event.rows.append(["a"]),
        lambda event: event.pair[0].append("a"),
        lambda event: event.box.names.append(None),
        lambda event: event.boxes[0].inner["b"].append("c"),
    ],
)
def test_an_event_that_was_changed_to_what_does_not_fit_is_refused_before_anything_changes(
    spoil: Callable[[Held], None],
) -> None:
    """It could be stored, but never read again."""
    holder, event = Holder("x"), held(1)
    spoil(event)
    before = state(holder)
    with pytest.raises(InvalidField, match=r"Held\.\w+: .*expected"):
        holder.apply(event)
    assert (holder.uncommitted_events, state(holder)) == ((), before)
    assert not is_stamped(event)


def test_a_default_that_can_be_changed_is_nobodys_own() -> None:
    one, other = Holder("1"), Holder("2")
    change(list(state(one).values()))
    assert state(one) != state(other) == state(Holder("3"))


class Widened(DomainEvent):
    """``box`` came later: events that were stored before have its default."""

    type_name = "properties.Widened"
    box: Box = Box([], {})


def test_a_default_of_a_stored_event_is_nobodys_own() -> None:
    message_of(Widened, {}).box.names.append("by an applier")
    assert message_of(Widened, {}).box.names == Widened().box.names == []


class Lax(AggregateRoot):
    """Defaults of aggregates are not checked."""

    type_name = "properties.Lax"
    names: list[str] = ()  # type: ignore[assignment]
    pair: tuple[list[int], str] = ()  # type: ignore[assignment]
    box: Box = "none yet"  # type: ignore[assignment]
    numbers: set[int] = [1]  # type: ignore[assignment]
    fixed: tuple[int, ...] = []  # type: ignore[assignment]


def test_a_default_that_does_not_fit_its_field_stays_as_it_is() -> None:
    lax = Lax("x")
    assert (lax.names, lax.pair, lax.box, lax.numbers, lax.fixed) == ((), (), "none yet", [1], [])
    assert lax.numbers is not Lax("y").numbers
    assert lax.fixed is not Lax("y").fixed
