"""A restored state equals the saved one. A state that cannot be restored is not saved."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django import AggregateRoot
from enode_django.domain.aggregate import accept_events
from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import message_of
from enode_django.exceptions import InvalidState, UnusableSnapshot
from enode_django.repository.state import differences, is_same, read_snapshot, snapshot_of
from tests.snapshots.domain import Fussy, Hooked, Misdeclared, Off, Place, Put, Shelf, Size, Undeclared

NAMES = st.text(max_size=8).filter(lambda text: "\0" not in text and text.isprintable())
PUTS = st.builds(
    Put,
    amount=st.integers(-(2**70), 2**70),
    place=st.none() | st.builds(Place, name=NAMES, lines=st.lists(NAMES, max_size=3).map(tuple)),
    size=st.sampled_from(Size),
    price=st.decimals(allow_nan=False, allow_infinity=True),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    labels=st.frozensets(NAMES, max_size=5),
)


def after(cls: type[AggregateRoot], *events: Put) -> Any:
    """Return an aggregate with these events, each a stream of its own."""
    aggregate = cls("a")
    for event in events:
        aggregate.apply(event)
        accept_events(aggregate)
    return aggregate


@settings(max_examples=30, deadline=None)
@given(st.lists(PUTS, max_size=8), st.sampled_from([Shelf, Hooked, Off]))
def test_what_is_restored_is_what_was_kept(events: list[Put], cls: type[AggregateRoot]) -> None:
    aggregate = after(cls, *events)
    copy = read_snapshot(cls, snapshot_of(aggregate, "command")).rebuild()
    assert differences(aggregate, copy) == {}
    assert {name: vars(copy)[name] for name in vars(aggregate)} == vars(aggregate)
    assert (copy.id, copy.version) == ("a", len(events))


@settings(max_examples=25, deadline=None)
@given(st.lists(PUTS, min_size=1, max_size=4), st.lists(PUTS, min_size=1, max_size=4))
def test_it_goes_on_as_if_nothing_had_been(first: list[Put], later: list[Put]) -> None:
    aggregate = after(Shelf, *first)
    copy = read_snapshot(Shelf, snapshot_of(aggregate, "command")).rebuild()
    for event in later:
        for one in (aggregate, copy):
            one.apply(message_of(Put, plain_of(event)))
            accept_events(one)
    assert differences(aggregate, copy) == {}


def test_a_copy_shares_nothing_with_the_original() -> None:
    aggregate = after(Shelf, Put(amount=1, place=Place("x")))
    copy = read_snapshot(Shelf, snapshot_of(aggregate, "c")).rebuild()
    copy.places.clear()
    copy.nested[1].append((2, "y"))
    assert aggregate.places == [Place("x")]
    assert aggregate.nested == {1: [(1, "x")]}


def test_every_flipped_byte_is_found() -> None:
    kept = snapshot_of(after(Shelf, Put(amount=1, place=Place("x"))), "c")
    for index in range(len(kept.payload)):
        flipped = bytearray(kept.payload)
        flipped[index] ^= 1 << (index % 8)
        with pytest.raises(UnusableSnapshot, match="bytes"):
            read_snapshot(Shelf, kept._replace(payload=bytes(flipped)))
    for cut in (b"", kept.payload[:10], kept.payload[:-1], kept.payload + b"\0"):
        with pytest.raises(UnusableSnapshot, match="bytes"):
            read_snapshot(Shelf, kept._replace(payload=cut))


@pytest.mark.parametrize(
    "changed", [{"aggregate_root_id": "b"}, {"version": 2}, {"fingerprint": "0" * 32}, {"aggregate_root_type": "x.Y"}]
)
def test_a_row_that_was_changed_is_found(changed: dict[str, Any]) -> None:
    kept = snapshot_of(after(Shelf, Put(amount=1)), "c")
    with pytest.raises(UnusableSnapshot, match="bytes"):
        read_snapshot(Shelf, kept._replace(**changed))


def test_what_a_restore_raises_makes_the_snapshot_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_snapshot(Hooked, snapshot_of(after(Hooked, Put(amount=1)), "c"))

    def refuse(self: Hooked, plain: Any) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(Hooked, "restore", refuse)
    with pytest.raises(UnusableSnapshot, match=r"RuntimeError: .*not today"):
        read.rebuild()


def test_state_that_no_field_declares_is_not_lost_silently() -> None:
    with pytest.raises(InvalidState, match=r"Undeclared keeps state in 'seen'.*not a declared field") as caught:
        snapshot_of(after(Undeclared, Put(amount=1)), "c")
    assert caught.value.concerns_class


def test_what_the_constructor_makes_anew_needs_no_field() -> None:
    aggregate = after(Undeclared)
    copy = read_snapshot(Undeclared, snapshot_of(aggregate, "c")).rebuild()
    assert (copy.rules, copy.seen) == (("constant",), [])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("amount", "said"), [(1, "total.*expected str, got 1"), (2, "counts.*Counter.*come back as")])
def test_what_would_come_back_as_something_else_is_not_kept(amount: int, said: str) -> None:
    with pytest.raises(InvalidState, match=said) as caught:
        snapshot_of(after(Misdeclared, Put(amount=amount)), "c")
    assert not caught.value.concerns_class


def test_a_policy_may_be_a_method_of_the_class() -> None:
    from enode_django.repository.policy import is_due, is_on

    assert is_on(Fussy)
    assert [version for version in range(1, 12) if is_due(Fussy, 3, version)] == [5, 7, 11]
    assert [is_due(Shelf, 0, 9), is_due(Shelf, 0, 10), is_due(Shelf, 7, 16), is_due(Shelf, 7, 17)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert not is_on(Off)
    assert not is_due(Off, 0, 1000)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), ([1], (1,)), ({"a": 1}, {"a": 1.0}), ([1, 2], [2, 1]), (Decimal("1.0"), 1.0), ({1: 2}, {1: 2, 3: 4})],
)
def test_equal_is_not_enough_to_be_the_same(one: Any, other: Any) -> None:
    assert not is_same(one, other)
    assert is_same(one, one)


def test_differences_are_named() -> None:
    one = after(Shelf, Put(amount=1, at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert differences(one, after(Shelf, Put(amount=2, at=one.last))) == {"total": (1, 2)}
    assert differences(after(Hooked, Put(amount=1)), after(Hooked)) == {"snapshot()": ([[1, 1]], [])}
