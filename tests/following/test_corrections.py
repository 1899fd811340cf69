"""A subscriber that has failed at an event goes on when the event is corrected, with the rows of the corrected
history."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from enode_django.eventing.registry import subscribers
from enode_django.exceptions import (
    AggregateNotFound,
    CorrectionOutdated,
    CorrectionRefused,
    InvalidFields,
    RebuildError,
)
from enode_django.models import EventCorrection, EventStream
from enode_django.operating.correcting import handled_before, retry_all
from enode_django.operating.corrections import correct, corrections_of, editable, json_of, take_back
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.postgres import PostgresSnapshotStore
from tests.following.domain import Added, Counter, CounterRows, Entries, Noted, Opened
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep
from tests.rebuilding.conftest import drop_schemas
from tests.snapshots.histories import snapshot_at

POISON = "a name that is too long for its column"
WHO: dict[str, Any] = {"by": "ann", "reason": "a typing error"}


def opened(owner: str, **changes: Any) -> list[dict[str, Any]]:
    return [{"type": "following.Opened", "schema_version": 1, "fields": {"owner": owner}, **changes}]


def added(*amounts: Any) -> list[dict[str, Any]]:
    return [{"type": "following.Added", "schema_version": 1, "fields": {"amount": amount}} for amount in amounts]


@pytest.fixture
def parked(harness: Harness) -> Sequence[Any]:
    """The records of an aggregate that `CounterRows` has parked at its first event. `Entries` has handled them."""
    with subscribers.only(CounterRows, Entries):
        records = harness.stored("c", Opened(owner=POISON), Added(amount=1), [Added(amount=2), Noted()])
        for cls in (CounterRows, Entries):
            harness.deliver(harness.subscription(subscribers.instance(cls), attempts=1), records)
        assert [row.version for row in harness.parked(CounterRows.name)] == [1]
        yield records


def stored_rows() -> list[Any]:
    return list(EventStream.objects.order_by("sequence").values_list())


def test_the_projection_goes_on_with_the_rows_of_the_corrected_history(harness: Harness, parked: Sequence[Any]) -> None:
    before = stored_rows()
    made = correct(harness.store, "c", 1, opened("ann"), last=0, **WHO)
    assert [(one.subscriber, one.parked, one.error) for one in retry_all("c")] == [(CounterRows.name, None, "")]
    assert harness.rows() == {"c": ("ann", 3, 3)}
    assert harness.parked(CounterRows.name) == []
    assert stored_rows() == before, "the event stream is as it was stored, byte for byte"
    (kept,) = EventCorrection.objects.all()
    assert (kept.pk, kept.corrected_by, kept.reason) == (made.number, "ann", "a typing error")
    rebuild(CounterRows.name, InProcess(), lambda stage, **figures: None)
    assert harness.rows() == {"c": ("ann", 3, 3)}
    drop_schemas()


def test_a_worker_tries_what_is_parked_with_the_corrected_event(harness: Harness, parked: Sequence[Any]) -> None:
    correct(harness.store, "c", 1, opened("ann"), last=0, **WHO)
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    from enode_django.models import ParkedEvent

    ParkedEvent.objects.update(next_try_at="2001-01-01T00:00Z")
    sweep.run()
    assert harness.rows() == {"c": ("ann", 3, 3)}


def test_messages_that_carry_the_original_do_no_harm(harness: Harness) -> None:
    """Neither messages that come later, nor messages of an aggregate that is set aside."""
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    records = harness.stored("c", Opened(owner=POISON), Added(amount=1))
    harness.deliver(sweep.subscription, records[:1])
    assert harness.rows() == {}
    correct(harness.store, "c", 1, opened("ann"), last=0, **WHO)
    late = harness.stored("d", Opened(owner=POISON))
    correct(harness.store, "d", 1, opened("bob"), last=0, **WHO)
    harness.clock.now += 1.5
    sweep.subscription.retry_due()
    harness.deliver(sweep.subscription, [*records, *late])
    assert harness.rows() == {"c": ("ann", 1, 2), "d": ("bob", 0, 1)}


def test_an_aggregate_is_loaded_in_its_corrected_state(harness: Harness) -> None:
    harness.stored("c", Opened(owner="ann"), Added(amount=100), Added(amount=1))
    snapshots = PostgresSnapshotStore()
    late = snapshot_at(harness.store, "c", 3)
    early = snapshot_at(harness.store, "c", 1)
    snapshots.save([late])
    made = correct(harness.store, "c", 2, added(10), last=0, **WHO)
    assert snapshots.versions(["c"]) == {}, "it is discarded"
    snapshots.save([late])  # as if it had been made before the correction
    assert snapshots.load(["c"]) == {}
    loader = AggregateLoader(harness.store, snapshots)
    for id, expected in (("c", 11),):
        counter = loader.load(id)
        assert isinstance(counter, Counter)
        assert (counter.total, counter.version) == (expected, 3)
    snapshots.discard(late)
    snapshots.save([early])
    assert snapshots.load(["c"]) == {"c": early}
    take_back(harness.store, "c", 2, by="bob", reason="it was right", last=made.number)
    counter = loader.load("c")
    assert isinstance(counter, Counter)
    assert counter.total == 101
    assert [one.corrected_by for one in corrections_of(harness.store, "c", 2)] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("events", "error", "text"),
    [
        (opened("ann", type="following.Added"), CorrectionRefused, "is a following.Opened, and stays one"),
        (opened("ann", type="following.Unheard"), CorrectionRefused, "no DomainEvent is named"),
        (opened("ann", schema_version=2), CorrectionRefused, "must have schema version 1"),
        (opened("ann", schema_version=True), CorrectionRefused, "must have schema version 1"),
        (opened("ann", more=1), CorrectionRefused, "must be an object with fields, schema_version, type"),
        (opened("ann", fields={"owner": 1}), InvalidFields, "0.fields.owner: expected a string, got 1"),
        (opened("ann", fields={"owner": "ann", "age": 1}), InvalidFields, "0.fields.age: there is no such field"),
        (opened("ann", fields={}), InvalidFields, "0.fields.owner: this field is required"),
        (opened("ann", fields=[]), InvalidFields, "expected an object"),
        ([], CorrectionRefused, "the events of the stream, 1 of them"),
        ([*opened("ann"), *opened("bob")], CorrectionRefused, "the events of the stream, 1 of them"),
        ({}, CorrectionRefused, "the events of the stream, 1 of them"),
        (opened(POISON), CorrectionRefused, "nothing is corrected"),
    ],
)
def test_what_is_no_correction_is_refused(
    harness: Harness, parked: Sequence[Any], events: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        correct(harness.store, "c", 1, events, last=0, **WHO)
    assert not EventCorrection.objects.exists()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"reason": " "}, "needs a reason"),
        ({"reason": "x" * 2_001}, "needs a reason"),
        ({"by": ""}, "say who corrects"),
    ],
)
def test_a_correction_says_who_and_why(
    harness: Harness, parked: Sequence[Any], given: dict[str, str], text: str
) -> None:
    with pytest.raises(CorrectionRefused, match=text):
        correct(harness.store, "c", 1, opened("ann"), last=0, **{**WHO, **given})


def test_a_correction_of_an_outdated_form_is_refused(harness: Harness, parked: Sequence[Any]) -> None:
    form = editable(harness.store, "c", 1)
    assert (form.last, form.is_corrected, form.events) == (0, False, opened(POISON))
    first = correct(harness.store, "c", 1, opened("ann"), last=form.last, **WHO)
    with pytest.raises(CorrectionOutdated, match="was corrected meanwhile"):
        correct(harness.store, "c", 1, opened("bob"), last=form.last, **WHO)
    with pytest.raises(CorrectionOutdated, match="was corrected meanwhile"):
        take_back(harness.store, "c", 1, last=form.last, **WHO)
    again = editable(harness.store, "c", 1)
    assert (again.last, again.is_corrected, again.events) == (first.number, True, opened("ann"))


def test_what_is_not_there_cannot_be_corrected_or_taken_back(harness: Harness, parked: Sequence[Any]) -> None:
    for id, version in (("c", 9), ("nobody", 1), ("c", 0)):
        with pytest.raises(AggregateNotFound):
            correct(harness.store, id, version, opened("ann"), last=0, **WHO)
        with pytest.raises(AggregateNotFound):
            take_back(harness.store, id, version, last=0, **WHO)
    with pytest.raises(CorrectionRefused, match="no correction that counts"):
        take_back(harness.store, "c", 1, last=0, **WHO)


def test_a_correction_with_which_the_aggregate_could_not_be_loaded_is_refused(
    harness: Harness, parked: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Counter._added

    def strict(self: Counter, event: Added) -> None:
        original(self, event)
        if self.total < 0:
            raise ValueError("there is no such total")

    monkeypatch.setattr(Counter, "_added", strict)
    with pytest.raises(CorrectionRefused, match="could not be loaded any more with version 2 corrected"):
        correct(harness.store, "c", 2, added(-1), last=0, **WHO)
    harness.stored("bad", Opened(owner="x"), Added(amount=-1), Added(amount=-1))
    correct(harness.store, "bad", 2, added(1), last=0, **WHO)  # the aggregate still cannot be loaded
    correct(harness.store, "bad", 3, added(1), last=0, **WHO)


def test_who_has_handled_the_original_is_named(harness: Harness, parked: Sequence[Any]) -> None:
    assert handled_before("c", 1) == [], "it was passed over: no subscriber but that which failed handles such an event"
    assert handled_before("c", 2) == [
        "following.entries has handled the version before it was corrected, and keeps what it has made of that: "
        "manage.py rebuildprojection following.entries --accept-differences"
    ]
    correct(harness.store, "c", 2, added(7), last=0, **WHO)
    assert harness.entries("c") == [(2, 1), (3, 2)]
    rebuild(Entries.name, InProcess(), lambda stage, **figures: None, accept_differences=True)
    assert harness.entries("c") == [(2, 7), (3, 2)]
    drop_schemas()


# -- manage.py enode parked


def run(*arguments: str) -> tuple[int, str]:
    out, status = io.StringIO(), 0
    try:
        call_command("enode", "parked", *arguments, stdout=out, no_color=True)
    except SystemExit as end:
        status = int(str(end.code))
    return status, out.getvalue()


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("show", *arguments)[1])
    return found


def test_the_command_shows_and_corrects_what_is_parked(harness: Harness, parked: Sequence[Any], tmp_path: Path) -> None:
    given = shown("c")
    assert given == {"aggregate_root_id": "c", "version": 1, "correction": 0, "events": opened(POISON)}
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**given, "events": opened("ann")}))
    status, said = run("edit", "c", "--file", str(file), "--reason", "too long", "--by", "ann")
    number = EventCorrection.objects.get().pk
    assert status == 0
    assert said.splitlines() == [
        f"correction {number}: version 1 of c is read as corrected",
        "following.rows goes on",
    ]
    assert harness.rows() == {"c": ("ann", 3, 3)}
    with pytest.raises(CommandError, match="was corrected meanwhile"):
        run("edit", "c", "--at", "1", "--file", str(file), "--reason", "again", "--by", "ann")
    assert shown("c", "--at", "1")["correction"] == number


def test_the_command_takes_a_correction_back(harness: Harness, parked: Sequence[Any]) -> None:
    first = correct(harness.store, "c", 1, opened("a better name that is still too long"), last=0, **WHO)
    status, said = run("edit", "c", "--original", "--reason", "it was right")
    assert status == 1, "it fails again"
    assert f"correction {first.number + 1}: version 1 of c is read as it was stored" in said
    assert "following.rows does not go on: parked at version 1: DataError" in said
    assert EventCorrection.objects.latest("pk").corrected_by
    assert editable(harness.store, "c", 1).events == opened(POISON)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "this is not JSON"),
        ("", "this is not JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ("[]", "give the JSON that manage.py enode parked show prints"),
        ('{"aggregate_root_id": "d", "version": 1, "correction": 0, "events": []}', "version 1 of 'd'"),
        ('{"aggregate_root_id": "c", "version": 1, "correction": "x", "events": []}', "must be a number"),
    ],
)
def test_the_command_refuses_what_is_no_such_file(
    harness: Harness, parked: Sequence[Any], tmp_path: Path, content: str, text: str
) -> None:
    file = tmp_path / "c.json"
    file.write_text(content)
    with pytest.raises(CommandError, match=text):
        run("edit", "c", "--file", str(file), "--reason", "x")
    assert not EventCorrection.objects.exists()


def test_the_command_wants_to_know_what_and_why(harness: Harness, parked: Sequence[Any], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is not parked: say which version"):
        run("show", "nobody")
    with pytest.raises(CommandError, match="--reason"):
        run("edit", "c", "--original")
    with pytest.raises(CommandError, match="--file"):
        run("edit", "c", "--reason", "x")
    with pytest.raises(CommandError, match="cannot be read"):
        run("edit", "c", "--file", str(tmp_path / "missing"), "--reason", "x")


def test_json_is_read_strictly() -> None:
    assert json_of('{"a": [1, "é"]}') == {"a": [1, "é"]}
    for text in ("[" * 100_000, b"\xff", '{"a": Infinity}'):
        with pytest.raises(CorrectionRefused, match="this is not JSON"):
            json_of(text)


def test_a_rebuild_during_which_an_event_is_corrected_swaps_nothing(
    harness: Harness, parked: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild may have replayed the original event."""
    replay = InProcess.replay

    def replay_and_correct(self: InProcess, *arguments: Any) -> Any:
        replayed = replay(self, *arguments)
        correct(harness.store, "c", 2, added(7), last=0, **WHO)
        return replayed

    monkeypatch.setattr(InProcess, "replay", replay_and_correct)
    with pytest.raises(RebuildError, match="events of 'c' were corrected meanwhile"):
        rebuild(Entries.name, InProcess(), lambda stage, **figures: None, accept_differences=True)
    monkeypatch.undo()
    rebuild(Entries.name, InProcess(), lambda stage, **figures: None, accept_differences=True)
    assert harness.entries("c") == [(2, 7), (3, 2)]
    drop_schemas()


def test_a_user_without_a_name_corrects_by_its_number(
    harness: Harness, parked: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a user that its system does not know."""
    correct(harness.store, "c", 1, opened("a better name that is still too long"), last=0, **WHO)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 98_765)
    run("edit", "c", "--original", "--reason", "it was right")
    assert harness.store.corrections("c")[-1].corrected_by == "98765"
