"""``manage.py enode rehearse``: the code of a deployment replays aggregates of the store before it goes live."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from enode_django import AggregateRoot, DomainException
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.history import Change, State, difference
from enode_django.history.states import changes_of
from enode_django.management.subcommands import rehearse as rehearsing
from enode_django.models import EventStream, Snapshot
from enode_django.repository.fingerprint import forget
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.state import snapshot_of
from enode_django.serialization.codec import encode_stream
from tests.snapshots.domain import Hooked, Off, Place, Put, Shelf
from tests.snapshots.histories import store_history, streams

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True)
class Box:
    colours: frozenset[str]


class Cupboard(AggregateRoot):
    type_name = "snapshots.Cupboard"
    drawers: dict[str, set[str]]
    boxes: tuple[Box | None, ...] = ()


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


def rehearse(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit status, and the lines that were written."""
    out = io.StringIO()
    try:
        call_command("enode", "rehearse", *arguments, stdout=out, no_color=True)
    except SystemExit as exit:
        return int(str(exit.code)), out.getvalue().splitlines()
    return 0, out.getvalue().splitlines()


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next release: its applier counts twice. What the fixtures before this one have made is made by other code."""

    def doubled(self: Shelf, event: Put) -> None:
        self.total += 2 * event.amount

    monkeypatch.setattr(Shelf, "_put", doubled)
    forget(Shelf)
    yield
    forget(Shelf)


@pytest.fixture
def snapshots(store: PostgresEventStore) -> None:
    for id, until, cls in (("a", 25, Shelf), ("h", 12, Hooked), ("o", 30, Off)):
        store_history(store, id, until, cls)
    call_command("enode", "buildsnapshots", stdout=io.StringIO())
    store_history(store, "a", 28, after=25)


@pytest.mark.usefixtures("snapshots")
def test_code_that_makes_the_same_states_passes() -> None:
    told = "3 aggregates replayed, 0 failed; 2 snapshots compared, 0 differ"
    assert rehearse("--sample", "100") == (0, [told])


@pytest.mark.usefixtures("snapshots", "doubling")
def test_states_that_differ_from_those_of_the_code_before_are_shown_and_their_snapshots_kept() -> None:
    lines = [
        "snapshots.Shelf 'a' at version 25: total was 325, is 650",
        "3 aggregates replayed, 0 failed; 2 snapshots compared, 1 differ",
    ]
    assert rehearse("--sample", "100") == (1, lines)
    assert rehearse("--sample", "100", "--accept-differences") == (0, lines)
    assert Snapshot.objects.count() == 2


def test_aggregates_that_cannot_be_replayed_are_shown_with_the_reason(store: PostgresEventStore) -> None:
    store_history(store, "bad", 12, fails_at=5)
    store.append([record._replace(aggregate_root_type="old.Thing") for record in streams("unknown", range(1, 3))])
    store_history(store, "good", 12)
    status, lines = rehearse("--sample", "200", "--accept-differences")
    assert (status, lines[-1]) == (1, "1 aggregates replayed, 2 failed; 0 snapshots compared, 0 differ")
    told = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines[:-1]}
    assert told["snapshots.Shelf 'bad'"] == "version 5 of 'bad' cannot be applied: ValueError('told to fail')"
    assert "'old.Thing'" in told["old.Thing 'unknown'"]


def test_it_is_told_how_many_failures_are_not_shown(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsing, "EXAMPLES", 1)
    for id in ("a", "b", "c"):
        store_history(store, id, 3, fails_at=2)
    status, lines = rehearse("--sample", "200")
    assert (status, lines[1:]) == (
        1,
        ["2 more failed", "0 aggregates replayed, 3 failed; 0 snapshots compared, 0 differ"],
    )


def store_events(store: PostgresEventStore, id: str, events: Iterable[Put]) -> None:
    for version, event in enumerate(events, 1):
        store.append([one._replace(events=encode_stream([event])) for one in streams(id, [version])])


class Refused(DomainException):
    type_name = "snapshots.Refused"


def test_an_applier_that_refuses_without_a_text_fails(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Shelf, event: Put) -> None:
        raise Refused

    store_history(store, "a", 1)
    monkeypatch.setattr(Shelf, "_put", refuse)
    lines = ["snapshots.Shelf 'a': Refused('')", "0 aggregates replayed, 1 failed; 0 snapshots compared, 0 differ"]
    assert rehearse("--sample", "1") == (1, lines)


def test_the_items_of_a_set_may_come_in_another_order(store: PostgresEventStore) -> None:
    one, other = next((a, b) for a, b in combinations(map(str, range(1_000)), 2) if list({a, b}) != list({b, a}))
    store_events(store, "a", [Put(amount=1, labels=frozenset({label})) for label in (one, other)])
    shelf, (_, record) = AggregateLoader(store).load("a"), store.load("a")
    assert isinstance(shelf, Shelf)
    shelf.labels = {other, one}
    PostgresSnapshotStore().save([snapshot_of(shelf, record.command_id)])
    assert rehearse("--sample", "1") == (0, ["1 aggregates replayed, 0 failed; 1 snapshots compared, 0 differ"])


def test_two_states_whose_sets_have_the_same_items_in_another_order_do_not_differ() -> None:
    one, other = "x", "y"
    fields = {"total": 1, "labels": [one, other]}
    before = State("snapshots.Shelf", "a", 1, fields)
    assert difference(before, before._replace(version=2, fields={**fields, "labels": [other, one]})) == []
    (change,) = difference(before, before._replace(version=2, fields={**fields, "labels": [one]}))
    assert (change.path, change.kind) == (("labels", 1), "removed")


def test_items_that_two_sets_have_in_common_are_no_change_in_any_order() -> None:
    before = State("snapshots.Shelf", "a", 1, {"total": 1, "labels": ["a", "b", "c"]})
    more, other = (
        difference(before, before._replace(version=2, fields={"total": 1, "labels": labels}))
        for labels in (["d", "c", "b", "a", "e"], ["d", "c", "b"])
    )
    assert [(change.kind, change.after) for change in more] == [("added", "d"), ("added", "e")]
    assert [(change.kind, change.before, change.after) for change in other] == [("changed", "a", "d")]


def test_sets_that_a_field_holds_are_compared_by_what_they_have_in_common() -> None:
    before = {"drawers": {"top": ["a", "b"], "low": ["c", "d"]}, "boxes": [{"colours": ["x", "y"]}, None]}
    after = {"drawers": {"low": ["e", "d", "c"], "top": ["b", "a"]}, "boxes": [{"colours": ["z", "y"]}, None]}
    assert changes_of(Cupboard, before, after) == [
        Change(("drawers", "low", 2), "added", after="e"),
        Change(("boxes", 0, "colours", 1), "changed", "x", "z"),
    ]


def test_only_the_first_differences_of_an_aggregate_are_shown(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_events(store, "a", (Put(amount=0, place=Place(str(number))) for number in range(12)))
    call_command("enode", "buildsnapshots", stdout=io.StringIO())
    monkeypatch.setattr(Shelf, "_put", lambda self, event: None)
    status, (line, _) = rehearse("--sample", "1")
    assert status == 1
    assert line.startswith("snapshots.Shelf 'a' at version 12: prices.0 was Decimal('0'), and is gone; ")
    assert line.endswith("; and 15 more")
    assert line.count(";") == 10


@pytest.mark.usefixtures("snapshots")
def test_only_aggregates_of_the_given_type_are_replayed() -> None:
    lines = ["1 aggregates replayed, 0 failed; 1 snapshots compared, 0 differ"]
    assert rehearse("--sample", "100", "--type", "snapshots.Hooked") == (0, lines)
    with pytest.raises(CommandError, match=r"no\.Such"):
        rehearse("--type", "no.Such")


def test_a_type_of_which_none_is_found_is_told(store: PostgresEventStore) -> None:
    store_history(store, "a", 1)
    nothing, told = rehearse("--sample", "5", "--type", "snapshots.Hooked")[1]
    assert nothing.startswith("0 aggregates replayed, 0 failed;")
    assert told == "no aggregate of snapshots.Hooked is near any of 5 random events; raise --sample"
    assert rehearse("--sample", "5", "--type", "snapshots.Shelf", "--type", "snapshots.Hooked")[1][1:] == [told]


@pytest.mark.usefixtures("snapshots", "doubling")
def test_a_damaged_snapshot_and_one_of_another_history_are_not_compared() -> None:
    damaged = Snapshot.objects.get(pk="h")
    damaged.payload = bytes(damaged.payload[:-1])
    damaged.save()
    EventStream.unprotected.filter(aggregate_root_id="a", version=25).update(command_id="another")
    assert rehearse("--sample", "100") == (0, ["3 aggregates replayed, 0 failed; 0 snapshots compared, 0 differ"])


def test_an_empty_store_needs_no_rehearsal() -> None:
    assert rehearse() == (0, ["0 aggregates replayed, 0 failed; 0 snapshots compared, 0 differ"])
