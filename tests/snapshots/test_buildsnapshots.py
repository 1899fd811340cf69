"""``manage.py enode buildsnapshots``."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.models import Snapshot as SnapshotRow
from enode_django.repository.fingerprint import forget
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.serialization.registry import types
from tests.snapshots.domain import Hooked, Off, Put, Shelf, Undeclared
from tests.snapshots.histories import snapshot_at, store_history

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


@pytest.fixture
def snapshots() -> PostgresSnapshotStore:
    return PostgresSnapshotStore()


def run(*arguments: str) -> tuple[int, list[str], str]:
    """The exit status, the lines that were written, and the errors."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("enode", "buildsnapshots", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as exit:
        return int(str(exit.code)), out.getvalue().splitlines(), err.getvalue()
    return 0, out.getvalue().splitlines(), err.getvalue()


def versions() -> dict[str, int]:
    return dict(SnapshotRow.objects.values_list("aggregate_root_id", "version"))


@pytest.fixture
def histories(store: PostgresEventStore) -> None:
    for id, until, cls in (("a", 25, Shelf), ("b", 9, Shelf), ("c", 10, Shelf), ("h", 12, Hooked), ("o", 30, Off)):
        store_history(store, id, until, cls)


@pytest.mark.usefixtures("histories")
def test_what_is_due_is_made_and_the_second_run_has_nothing_to_do() -> None:
    assert run() == (
        0,
        [
            "snapshots.Hooked: 1 snapshots made",
            "snapshots.Shelf: 2 snapshots made",
            "3 snapshots made, 0 aggregates failed",
        ],
        "",
    )
    assert versions() == {"a": 25, "c": 10, "h": 12}
    assert run() == (0, ["0 snapshots made, 0 aggregates failed"], "")


@pytest.mark.usefixtures("histories")
def test_a_dry_run_makes_nothing() -> None:
    status, lines, _ = run("--dry-run")
    assert (status, lines[-1]) == (0, "3 snapshots due, 0 aggregates failed")
    assert versions() == {}


@pytest.mark.usefixtures("histories")
def test_only_the_types_that_are_named() -> None:
    assert run("--type", "snapshots.Hooked")[1][-1] == "1 snapshots made, 0 aggregates failed"
    assert versions() == {"h": 12}


@pytest.mark.parametrize(("name", "said"), [("no.Such", "no AggregateRoot is named"), ("snapshots.Off", "None")])
def test_a_type_that_has_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        run("--type", name)


def test_switched_off_it_says_so() -> None:
    with (
        override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}),
        pytest.raises(CommandError, match="switched off"),
    ):
        run()


@pytest.mark.parametrize("wrong", ["0", "-1", "many"])
def test_a_sample_is_a_number(wrong: str) -> None:
    with pytest.raises(CommandError, match="not a number above 0"):
        run("--verify", wrong)


def test_many_aggregates_in_many_parts_of_the_store_get_one_each(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.repository.snapshot_building.ROWS_AT_ONCE", 40)
    monkeypatch.setattr("enode_django.repository.snapshot_building.AT_ONCE", 3)
    ids = [f"a{n:02}" for n in range(15)]
    for after in (0, 10, 20):
        for id in ids:
            store_history(store, id, after + 10, after=after)
    assert run("--dry-run")[1][-1] == "15 snapshots due, 0 aggregates failed"
    assert run()[1][-1] == "15 snapshots made, 0 aggregates failed"
    assert versions() == dict.fromkeys(ids, 30)


def test_one_that_fails_is_named_and_the_others_are_made(store: PostgresEventStore) -> None:
    store_history(store, "bad", 12, fails_at=5)
    store_history(store, "good", 12)
    store_history(store, "odd", 12, Undeclared)
    status, lines, errors = run()
    assert (status, lines[-1]) == (1, "1 snapshots made, 2 aggregates failed")
    assert "snapshots.Shelf 'bad': BrokenHistory" in errors
    assert "snapshots.Undeclared 'odd': its class keeps state that no snapshot can hold" in errors
    assert versions() == {"good": 12}


@pytest.mark.usefixtures("histories")
def test_snapshots_that_are_right_are_as_replayed(store: PostgresEventStore) -> None:
    run()
    store_history(store, "a", 28, after=25)
    assert run("--verify", "100") == (0, ["3 snapshots are as replayed, 0 differ, 0 were made by other code"], "")
    assert run("--verify", "2")[1] == ["2 snapshots are as replayed, 0 differ, 0 were made by other code"]
    assert run("--verify", "9", "--type", "snapshots.Hooked")[1][0].startswith("1 snapshots are as replayed")


@pytest.mark.usefixtures("histories")
def test_snapshots_under_a_former_name_of_the_class_are_verified_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setitem(types._names, Hooked, "snapshots.Caught")
        run()
    assert SnapshotRow.objects.get(aggregate_root_id="h").aggregate_root_type == "snapshots.Caught"
    told = run("--verify", "9", "--type", "snapshots.Hooked")
    assert told == (0, ["1 snapshots are as replayed, 0 differ, 0 were made by other code"], "")


@pytest.mark.usefixtures("histories")
def test_a_snapshot_that_differs_is_shown_and_left_as_it_is(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An applier that depends on something beside the event: no fingerprint sees that."""
    surroundings: dict[str, Any] = {"rate": 1}

    def processor(self: Shelf, event: Put) -> None:
        self.total += event.amount * surroundings["rate"]

    monkeypatch.setattr(Shelf, "_put", processor)
    forget(Shelf)
    try:
        run()
        surroundings["rate"] = 2
        status, lines, _ = run("--verify", "10")
    finally:
        forget(Shelf)
    assert status == 1
    assert sorted(lines) == [
        "1 snapshots are as replayed, 2 differ, 0 were made by other code",
        "snapshots.Shelf 'a' at version 25: total is 325, replayed 650",
        "snapshots.Shelf 'c' at version 10: total is 55, replayed 110",
    ]
    assert versions() == {"a": 25, "c": 10, "h": 12}


def test_what_is_broken_is_found(store: PostgresEventStore, snapshots: PostgresSnapshotStore) -> None:
    for id in ("bytes", "lost", "other", "code"):
        store_history(store, id, 12)
    good = {id: snapshot_at(store, id, 12) for id in ("bytes", "lost", "other", "code")}
    ahead = snapshot_at_more(store, "lost")
    snapshots.save(
        [
            good["bytes"]._replace(payload=good["bytes"].payload[:-1]),
            ahead,
            elsewhere("other", 12),
            good["code"]._replace(fingerprint="0" * 32),
        ]
    )
    status, lines, _ = run("--verify", "10")
    assert status == 1
    assert sorted(line.partition(" by command")[0] for line in lines) == [
        "0 snapshots are as replayed, 3 differ, 1 were made by other code",
        "snapshots.Shelf 'bytes' at version 12: its bytes are not those that were written",
        "snapshots.Shelf 'lost' at version 20: the store has no such version",
        "snapshots.Shelf 'other' at version 12: the store has another history: version 12",
    ]


def snapshot_at_more(store: PostgresEventStore, id: str) -> Any:
    """Return a snapshot of versions that the store does not have."""
    more = MemoryEventStore()
    more.append(list(store.load(id)))
    store_history(more, id, 20, after=12)
    return snapshot_at(more, id, 20)


def elsewhere(id: str, version: int) -> Any:
    other = MemoryEventStore()
    store_history(other, id, version)
    return snapshot_at(other, id, version)
