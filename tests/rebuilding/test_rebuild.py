"""New tables of a projection are built beside those in use, and replace them without losing an event."""

from __future__ import annotations

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import ProjectionsDiffer, RebuildError
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, undo
from tests.following.domain import Added, Closed, CounterRow, CounterRows, Entries, Entry, Noted, Opened
from tests.following.harness import Harness
from tests.rebuilding.conftest import schemas


def nothing(stage: str, **figures: object) -> None: ...


def some_history(harness: Harness, *ids: str) -> None:
    for number, id in enumerate(ids):
        harness.stored(id, Opened(owner=id), Added(amount=number), [Added(amount=10), Noted()])


def follow(harness: Harness, *chosen: type[Subscriber]) -> None:
    """Let these projections handle everything stored."""
    from enode_django.runtime import replay

    replay(*(subscribers.instance(cls).name for cls in chosen))


@pytest.fixture
def followed(projections: Harness) -> Harness:
    some_history(projections, "a", "b", "c")
    projections.stored("gone", Opened(owner="x"), Closed())
    follow(projections, CounterRows, Entries)
    return projections


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_rebuilt_tables_take_the_place_of_those_in_use(followed: Harness, cls: type[Subscriber]) -> None:
    before = (followed.rows(), followed.entries("a"), followed.entries("b"))
    rebuilt = rebuild(cls.name, InProcess(), nothing)
    assert rebuilt.is_swapped
    assert rebuilt.comparison.is_equal
    assert rebuilt.comparison.compared == 4
    assert (rebuilt.replayed.streams, rebuilt.replayed.aggregates) == (11, 4)
    assert (followed.rows(), followed.entries("a"), followed.entries("b")) == before
    assert followed.checkpoint(cls.name, "gone") == 2


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_events_go_on_where_the_rebuilt_tables_are(followed: Harness, cls: type[Subscriber]) -> None:
    subscription = followed.subscription(subscribers.instance(cls))
    rebuild(cls.name, InProcess(), nothing)
    more = followed.stored("a", Added(amount=5), after=3)
    followed.deliver(subscription, [*more, *more])
    follow(followed, cls)
    if cls is CounterRows:
        assert followed.rows()["a"] == ("a", 15, 4)
    else:
        assert followed.entries("a") == [(2, 0), (3, 10), (4, 5)]


def test_the_bug_of_a_handler_goes_with_a_rebuild_that_accepts_differences(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    CounterRow.objects.filter(pk="a").update(total=-1)
    Entry.objects.filter(aggregate_root_id="b", version=2).delete()
    with pytest.raises(ProjectionsDiffer, match=r"following_counterrow of a: total: rebuilt 10, in use -1"):
        rebuild(CounterRows.name, InProcess(), nothing)
    assert followed.rows()["a"][1] == -1
    with pytest.raises(ProjectionsDiffer, match="1 rows differ"):
        rebuild(Entries.name, InProcess(), nothing)
    assert schemas() == []
    for name in (CounterRows.name, Entries.name):
        assert rebuild(name, InProcess(), nothing, accept_differences=True).comparison.rows > 0
    assert followed.rows()["a"][1] == 10
    assert followed.entries("b") == [(2, 1), (3, 10)]


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_an_undone_rebuild_leaves_what_was_before_brought_up_to_date(followed: Harness, cls: type[Subscriber]) -> None:
    rebuild(cls.name, InProcess(), nothing)
    followed.stored("a", Added(amount=5), after=3)
    followed.stored("new", Opened(owner="n"), Added(amount=1))
    follow(followed, cls)
    undone = undo(cls.name, InProcess(), nothing)
    assert undone.comparison.is_equal
    assert followed.rows()["a"] == ("a", 15 if cls is CounterRows else 10, 4 if cls is CounterRows else 3)
    if cls is Entries:
        assert followed.entries("a") == [(2, 0), (3, 10), (4, 5)]
        assert followed.entries("new") == [(2, 1)]
    followed.stored("a", Added(amount=7), after=4)
    follow(followed, cls)
    assert followed.checkpoint(cls.name, "a") == (None if cls is CounterRows else 5)
    with pytest.raises(RebuildError, match="no rebuild that could be undone"):
        undo(cls.name, InProcess(), nothing)
