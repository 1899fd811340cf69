"""Keys and items that an attacker has chosen to have the same hash: each would be compared with all earlier ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.fields import field_type
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.hashes import MOST_ALIKE, collide
from enode_django.domain.messages import Command, DomainEvent
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import InvalidField, MalformedMessage
from enode_django.repository.loading import AggregateLoader
from enode_django.serialization import plain, unpacking
from enode_django.serialization.json_values import json_type
from enode_django.serialization.plain import pack, unpack
from tests.races.harness import Worker

MODULUS = sys.hash_info.modulus
MANY = range(1, 6_001)


class Counted(UUID):
    """Counts comparisons. A set of 6,000 values with the same hash takes 18 million."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = UUID.__hash__


KINDS: dict[str, tuple[type, Callable[[int], Any]]] = {
    "UUIDs": (UUID, lambda number: UUID(int=number * MODULUS)),
    "whole numbers": (int, lambda number: number * MODULUS),
    "decimals": (Decimal, lambda number: Decimal(number * MODULUS)),
}
each_kind = pytest.mark.parametrize(("kind", "make"), KINDS.values(), ids=KINDS)


@each_kind
@pytest.mark.parametrize("collection", [set, frozenset])
def test_a_set_of_them_is_refused(kind: type, make: Callable[[int], Any], collection: Any) -> None:
    values = [make(number) for number in MANY]
    decode = field_type(collection[kind]).decode
    with pytest.raises(InvalidField, match="have the same hash"):
        decode(values)
    assert decode(values[:MOST_ALIKE]) == collection(values[:MOST_ALIKE])


class Collect(Command):
    type_name = "attacks.Collect"
    numbers: set[int]


class Collected(DomainEvent):
    type_name = "attacks.Collected"
    numbers: set[int]
    doubled: dict[int, str]


class Collection(AggregateRoot):
    type_name = "attacks.Collection"
    numbers: set[int] = set()

    @applies
    def _collected(self, event: Collected) -> None:
        self.numbers = event.numbers


def collect(command: Collect, context: CommandContext) -> None:
    collection = context.find(Collection)
    if collection is None:
        collection = Collection(command.aggregate_root_id)
        context.add(collection)
    numbers = collection.numbers | command.numbers
    collection.apply(Collected(numbers=numbers, doubled={2 * number: "" for number in numbers}))


def test_an_aggregate_that_collects_them_from_several_commands_stays_readable() -> None:
    """Each command has few of them. An event with all could be stored, but never read again."""
    store = MemoryEventStore()
    worker = Worker(store)
    worker.processor._handlers = HandlerTable()
    worker.processor._handlers.add(Collect, collect)
    some, others = ({number * MODULUS for number in numbers} for numbers in (MANY[:60], MANY[60:120]))
    assert worker.run(Collect("x", numbers=some))[0].status is CommandStatus.SUCCESS
    (answer,) = worker.run(Collect("x", numbers=others))
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "InvalidField")
    loaded = AggregateLoader(store).load("x")
    assert isinstance(loaded, Collection)
    assert loaded.numbers == some


def zeros(keys: list[Any]) -> dict[Any, int]:
    return dict.fromkeys(keys, 0)


@each_kind
def test_messages_are_not_made_with_them(kind: type, make: Callable[[int], Any]) -> None:
    values = [make(number) for number in MANY[: MOST_ALIKE + 1]]
    for annotation, of in ((set[kind], set), (frozenset[kind], frozenset), (dict[kind, int], zeros)):  # type: ignore[valid-type]
        check, made = field_type(annotation).check, of(values[1:])
        assert check(made) == made
        with pytest.raises(InvalidField, match="have the same hash"):
            check(of(values))


@each_kind
def test_what_is_made_of_them_is_refused_too(kind: type, make: Callable[[int], Any]) -> None:
    with pytest.raises(InvalidField, match="have the same hash"):
        field_type(set[tuple[kind, ...]]).decode([[make(number)] for number in MANY])  # type: ignore[valid-type]


@each_kind
def test_a_map_with_such_keys_is_refused_wherever_it_lies(kind: type, make: Callable[[int], Any]) -> None:
    packer = plain.msgpack.Packer(default=plain._to_extension)
    pairs = b"".join(packer.pack(make(number)) + b"\xc0" for number in MANY)
    body = pack(["any", 1])[:-1] + b"\x91" + packer.pack_map_header(len(MANY)) + pairs
    for is_foreign in (False, True):
        with pytest.raises(MalformedMessage, match="keys of a map have the same hash"):
            unpack(body, is_foreign=is_foreign)


@each_kind
def test_json_with_them_is_refused(kind: type, make: Callable[[int], Any]) -> None:
    texts = [make(number) if kind is int else str(make(number)) for number in MANY]
    for annotation, value in ((set[kind], texts), (dict[kind, bool], dict.fromkeys(map(str, texts), True))):  # type: ignore[valid-type]
        errors: dict[Any, list[str]] = {}
        json_type(annotation).read(value, (), errors)
        assert "with the same hash" in str(errors)


def test_they_are_found_out_in_time_that_grows_as_their_number_does() -> None:
    assert collide([Counted(int=number * MODULUS) for number in MANY])
    assert Counted.compared == 0


def test_values_that_are_alike_by_chance_or_there_twice_are_taken() -> None:
    assert not collide([2**number for number in range(1_000)])
    assert not collide([float(2**number) for number in range(1_000)])
    assert not collide([UUID(int=7)] * 10_000)
    assert not collide([Decimal(10) ** number for number in range(500)])
    sound = {UUID(int=number) for number in range(3_000)}
    assert field_type(set[UUID]).decode([*sound]) == sound
    keyed = dict.fromkeys(range(3_000))
    assert unpack(pack(keyed)) == unpack(pack(keyed), is_foreign=True) == keyed


def test_a_message_from_outside_has_a_limit_for_its_values() -> None:
    body = b"\x91" * 5 + b"\xdd" + (1_001).to_bytes(4, "big") + (b"\xdc\x03\xe8" + b"\x01" * 1_000) * 1_001
    with pytest.raises(MalformedMessage, match=f"more than {unpacking.MOST_VALUES} values"):
        unpack(body, is_foreign=True)
    assert unpack(pack([[1] * 20_000] * 4), is_foreign=True) == [[1] * 20_000] * 4
