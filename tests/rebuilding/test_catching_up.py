"""Events that are stored during a rebuild are in the rebuilt tables when these come into use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import RebuildError, TablesInUse
from enode_django.rebuilding import catching_up, putting_in_use
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, swap_kept, undo
from enode_django.rebuilding.swapping import Swap
from tests.following.domain import Added, Opened
from tests.following.harness import Harness, stream_of
from tests.integration.sharded import ALIASES, id_in, opened, shard_databases, sharded_settings, sharded_store
from tests.integration.store_sessions import Call, bare_session, insert
from tests.rebuilding.domain import Balances, Postings
from tests.rebuilding.histories import balances, before_the_last_step, follow, nothing, some_history
from tests.rebuilding.histories import postings as posted

BOTH = pytest.mark.parametrize("cls", [Postings, Balances])


def amounts(cls: type[Subscriber]) -> dict[str, int]:
    if cls is Balances:
        return {id: total for id, (total, _, _) in balances().items()}
    return {id: sum(some) for id, some in posted().items()}


@BOTH
def test_what_is_stored_at_each_stage_is_in_the_rebuilt_tables(postings: Harness, cls: type[Subscriber]) -> None:
    """Only the rebuild handles these events, except those that come at the very end, which a worker handles."""
    some_history(postings, "a")
    follow(cls)
    stored: dict[str, int] = {}

    def store(stage: str, **figures: object) -> None:
        if stage not in stored:
            stored[stage] = 10 ** (len(stored) + 2)
            Call(lambda: postings.stored(f"at {stage}", Added(amount=stored[stage]))).result()

    rebuild(cls.name, InProcess(), store)
    after_load = {"make indexes"} if cls is Balances else set()
    assert set(stored) == {"replay", *after_load, "catch up", "check a sample", "compare", "swap"}
    late = stored.pop("swap")
    assert amounts(cls) == {"a": 10} | {f"at {stage}": amount for stage, amount in stored.items()}
    follow(cls)
    assert amounts(cls)["at swap"] == late


@BOTH
def test_a_transaction_that_was_open_when_the_rebuild_began_is_in_when_it_commits(
    postings: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's row has a lower sequence than replayed rows."""
    with bare_session() as early, bare_session() as later:
        insert(early, stream_of("early", 1, [Added(amount=1)]))
        insert(later, stream_of("later", 1, [Added(amount=2)]))
        some_history(postings, "a")

        def commit(stage: str, **figures: object) -> None:
            if stage == "check a sample":
                early.commit()

        before_the_last_step(monkeypatch, later.commit)
        rebuild(cls.name, InProcess(), commit)
    assert amounts(cls) == {"a": 10, "early": 1, "later": 2}


@BOTH
def test_what_came_in_many_transactions_is_handled_once(
    postings: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregate is then in many ranges of the catch-up."""
    monkeypatch.setattr(catching_up, "TASK_STREAMS", 1)
    postings.stored("a", Opened(owner="a"))
    follow(cls)
    versions = iter(range(1, 10))

    def store(count: int) -> None:
        for _ in range(count):
            postings.stored("a", Added(amount=1), after=next(versions))

    before_the_last_step(monkeypatch, lambda: store(3))
    rebuild(
        cls.name, InProcess(), lambda stage, **figures: Call(lambda: store(3)).result() if stage == "replay" else None
    )
    assert amounts(cls) == {"a": 6}
    if cls is Balances:
        assert balances()["a"][1] == 6
    else:
        assert posted()["a"] == [1] * 6


@BOTH
def test_what_was_open_during_the_whole_rebuild_is_handled_by_those_that_follow(
    postings: Harness, cls: type[Subscriber]
) -> None:
    some_history(postings, "a")
    follow(cls)
    with bare_session() as session:
        insert(session, stream_of("open", 1, [Added(amount=1)]))
        rebuild(cls.name, InProcess(), nothing)
        session.commit()
    follow(cls)
    assert amounts(cls) == {"a": 10, "open": 1}
    undo(cls.name, InProcess(), nothing)
    assert amounts(cls) == {"a": 10, "open": 1}


@BOTH
def test_what_is_in_use_behind_an_open_transaction_is_no_difference(postings: Harness, cls: type[Subscriber]) -> None:
    """A row stored after the beginning of a transaction that is still open is not settled, but workers handle it."""
    some_history(postings, "a")
    follow(cls)
    subscription = postings.subscription(subscribers.instance(cls))
    with bare_session() as session:
        insert(session, stream_of("open", 1, [Added(amount=1)]))

        def follow_more(stage: str, **figures: object) -> None:
            if stage == "compare":
                more = Call(lambda: postings.stored("a", Added(amount=5), after=3)).result()
                Call(lambda: postings.deliver(subscription, more)).result()

        assert rebuild(cls.name, InProcess(), follow_more).comparison.is_equal
        assert amounts(cls) == {"a": 15}
        session.rollback()


def test_rounds_go_on_until_little_is_left(postings: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catching_up, "SMALL", 0)
    some_history(postings, "a")
    rounds: dict[int, Any] = {}

    def store_less_and_less(stage: str, **figures: Any) -> None:
        if stage == "replay":
            _store(postings, 4, "first")
        if stage == "catch up" and len(rounds) < 4:
            rounds[len(rounds) + 1] = figures["aggregates"]
            _store(postings, 4 - len(rounds), f"round {len(rounds)}")

    rebuild(Balances.name, InProcess(), store_less_and_less)
    assert rounds == {1: 4, 2: 3, 3: 2, 4: 1}
    assert len(balances()) == 1 + 4 + 3 + 2 + 1


def test_a_rebuild_that_cannot_keep_up_gives_up_and_says_why(
    postings: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "SMALL", 0)
    monkeypatch.setattr(catching_up, "MOST", 0)
    monkeypatch.setattr(catching_up, "ROUNDS", 3)
    some_history(postings, "a")

    def store(stage: str, **figures: Any) -> None:
        _store(postings, 1, f"{stage} {figures}")

    with pytest.raises(RebuildError, match=r"rebuilding.balances was not caught up with after 3 rounds, 1 streams"):
        rebuild(Balances.name, InProcess(), store)


@pytest.mark.parametrize("ids", [["x", "y", "z"], ["hot"]], ids=["many aggregates", "many streams of one"])
def test_too_much_for_the_last_moment_is_caught_up_with_before_it(
    postings: Harness, monkeypatch: pytest.MonkeyPatch, ids: list[str]
) -> None:
    monkeypatch.setattr(catching_up, "MOST", 2)
    some_history(postings, "a")
    added = [Added(amount=1) for _ in range(3 // len(ids))]
    before_the_last_step(monkeypatch, lambda: [postings.stored(id, *added) for id in ids])
    swaps: list[object] = []
    rebuild(
        Balances.name,
        InProcess(),
        lambda stage, **figures: swaps.append(figures["streams"]) if stage == "swap" else None,
    )
    assert swaps == [0], "the first attempt was given up, and what it found was caught up with"
    assert {id: balances()[id][1] for id in ids} == dict.fromkeys(ids, len(added))


def test_rounds_end_when_they_leave_no_less_than_before_but_what_the_swap_may_take(
    postings: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number of events comes in each round."""
    monkeypatch.setattr(catching_up, "SMALL", 0)
    some_history(postings, "a")
    rounds: list[object] = []

    def store(stage: str, **figures: Any) -> None:
        if stage in ("replay", "catch up"):
            _store(postings, 2, f"{len(rounds)}")
            rounds.append(figures.get("round"))

    rebuild(Balances.name, InProcess(), store)
    assert rounds == [None, 1, 2, 1, 2], "once before the comparison, once before the swap"


@BOTH
def test_an_open_write_transaction_is_in_nobodys_way(
    postings: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events stored since the transaction began are not left for the swap, while writers are locked out."""
    monkeypatch.setattr(catching_up, "MOST", 2)
    some_history(postings, "a")
    swaps: list[object] = []
    with bare_session() as session:
        session.execute("CREATE TABLE of_somebody_else (id integer)")
        _store(postings, 10, "after it began")
        rebuild(
            cls.name,
            InProcess(),
            lambda stage, **figures: swaps.append(figures["streams"]) if stage == "swap" else None,
        )
    assert swaps == [0], "nor is any of it looked at again in that moment"
    assert len(amounts(cls)) == 11


def test_writers_are_not_shut_out_again_without_a_pause_and_what_was_built_is_kept(
    postings: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "MOST", 2)
    monkeypatch.setattr(putting_in_use, "SWAPS", 3)
    monkeypatch.setattr(putting_in_use, "FIRST_PAUSE", 0.001)
    some_history(postings, "a")
    waited: list[str] = []
    check = Swap._check

    def store_too_much(swap: Swap) -> object:
        found = check(swap)
        Call(lambda: _store(postings, 3, f"last {time.monotonic()}")).result()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Swap, "_check", store_too_much)
        with pytest.raises(TablesInUse, match=r"events keep coming in faster .* what was built is kept"):
            rebuild(Balances.name, InProcess(), lambda stage, **f: waited.append(stage) if "wait" in stage else None)
    assert waited == ["wait to swap"] * 2
    assert swap_kept(Balances.name, InProcess(), nothing).is_swapped
    assert len(balances()) == 10


def _store(harness: Harness, count: int, name: str) -> None:
    for number in range(count):
        harness.stored(f"{name} {number}", Added(amount=1))


# -- a store of several shards ----------------------------------------------------------------------------------------


@pytest.fixture
def shards(postings: Harness) -> Iterator[Harness]:
    with shard_databases() as names, opened(names), sharded_settings():
        postings.store = sharded_store()  # type: ignore[assignment]
        yield postings


@BOTH
def test_a_sharded_store_is_replayed_and_caught_up_with_shard_by_shard(
    shards: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [id_in(place, name) for place in range(len(ALIASES)) for name in ("x", "y")]
    late = [id_in(place, "late") for place in range(len(ALIASES))]
    for number, id in enumerate(ids):
        shards.stored(id, Opened(owner=id), Added(amount=number))
    follow(cls)

    def store(stage: str, **figures: object) -> None:
        if stage == "replay" and late[0] not in stored:
            for id in late:
                shards.stored(id, Added(amount=100))
                stored.append(id)

    stored: list[str] = []
    rebuild(cls.name, InProcess(), store)
    assert amounts(cls) == {id: number for number, id in enumerate(ids)} | dict.fromkeys(late, 100)
    shards.stored(ids[0], Added(amount=1000), after=2)
    shards.stored(ids[-1], Added(amount=1000), after=2)
    undo(cls.name, InProcess(), nothing)
    assert amounts(cls)[ids[0]] == 1000
    assert amounts(cls)[ids[-1]] == 1003
