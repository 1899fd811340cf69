"""Whatever happens during a rebuild, rows are compared, or the rebuild reports that they were not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from enode_django import DomainEvent
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ProjectionsDiffer
from enode_django.jobs.progress import Report
from enode_django.models import Rebuild
from enode_django.rebuilding import checking, putting_in_use, swapping
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Replayed, Todo
from enode_django.rebuilding.results import describe
from enode_django.rebuilding.shadow import Shadow
from tests.following.domain import Added, Opened
from tests.following.harness import Harness
from tests.integration.store_sessions import Call, bare_session
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balance, Balances, Effects, Posting, Postings
from tests.rebuilding.histories import balances, follow, nothing, some_history
from tests.rebuilding.histories import postings as posted

ALL = ("a", "b", "c")


@pytest.fixture
def followed(postings: Harness) -> Harness:
    some_history(postings, *ALL)
    follow()
    return postings


class Deposits:
    """Stores events of all aggregates. With ``are_followed``, workers handle them at once."""

    def __init__(self, harness: Harness, *, are_followed: bool = True) -> None:
        self._harness = harness
        self._are_followed = are_followed
        self.version = 3

    def make(self) -> None:
        for id in ALL:
            self._harness.stored(id, Added(amount=1), after=self.version)
        self.version += 1
        if self._are_followed:
            Call(follow).result()


class BusyEngine(InProcess):
    """An engine that calls ``happens`` after each catch-up."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        done = super().catch_up(shadow, todo)
        self._happens()
        return done

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        done = super().work_off(shadow, tasks)
        self._happens()
        return done


def test_a_wrong_row_is_found_though_every_aggregate_has_moved_on_when_rows_are_compared(followed: Harness) -> None:
    deposits = Deposits(followed)
    Posting.objects.filter(account="b", amount=10).update(amount=100_010)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_posting of b: amount: rebuilt 10, in use 100010"):
        rebuild(Postings.name, InProcess(), lambda stage, **figures: deposits.make() if stage == "compare" else None)
    assert deposits.version == 4
    assert schemas() == []


def test_a_wrong_row_is_found_though_its_aggregate_never_rests(followed: Harness) -> None:
    """The row is compared when the swap has locked workers out."""
    deposits = Deposits(followed)
    Balance.objects.filter(pk="b").update(total=100_011)
    engine = BusyEngine(deposits.make)
    with pytest.raises(ProjectionsDiffer, match=r"rebuilding_balance of b: total: rebuilt \d+, in use 1000\d+"):
        rebuild(Balances.name, engine, lambda stage, **figures: deposits.make() if stage == "compare" else None)
    assert deposits.version > 6, "it did not rest"
    assert balances()["b"][0] > 100_000


def test_all_aggregates_are_compared_though_none_of_them_rests(followed: Harness) -> None:
    deposits = Deposits(followed)
    engine = BusyEngine(deposits.make)
    rebuilt = rebuild(Balances.name, engine, lambda stage, **f: deposits.make() if stage == "compare" else None)
    assert rebuilt.figures()["compared"] == 3
    assert rebuilt.figures()["uncompared"] == 0
    follow()
    assert {id: total for id, (total, _, _) in balances().items()} == {
        id: number + 10 + deposits.version - 3 for number, id in enumerate(ALL)
    }
    assert len(schemas()) == 1, "of the generation that was replaced"


@pytest.mark.parametrize("is_attributed", [True, False])
def test_rows_are_compared_once_though_the_transaction_of_the_swap_is_repeated(
    followed: Harness, monkeypatch: pytest.MonkeyPatch, is_attributed: bool
) -> None:
    """A reader holds up the first attempt after its comparison. More events come before the second one."""
    monkeypatch.setattr(swapping, "LOCK_TIMEOUT", "100ms")
    if not is_attributed:
        monkeypatch.setattr(Postings, "aggregate_field", "")
        monkeypatch.setattr(checking, "LOOKS", 1)
    deposits, swaps = Deposits(followed), []
    with bare_session() as reader:

        def happen(stage: str, **figures: object) -> None:
            if stage == "compare":
                deposits.make()
                reader.execute("SELECT count(*) FROM rebuilding_posting")
            if stage == "swap":
                swaps.append(stage)
                if len(swaps) == 2:
                    reader.execute("ROLLBACK")

        rebuilt = rebuild(Postings.name, BusyEngine(deposits.make), happen)
    assert len(swaps) > 1
    assert (rebuilt.comparison.is_equal, rebuilt.comparison.is_whole) == (True, True)
    assert rebuilt.comparison.compared == 3
    assert len(posted()["a"]) == deposits.version - 1


def test_a_wrong_row_is_found_though_the_tables_in_use_are_behind(followed: Harness) -> None:
    """The row is compared at the version in use, although the next event may correct it."""
    deposits = Deposits(followed, are_followed=False)
    deposits.make()
    rebuilt = rebuild(Postings.name, InProcess(), nothing)
    assert (rebuilt.comparison.compared, rebuilt.comparison.apart) == (3, 3)
    assert posted()["a"] == [0, 10, 1]
    deposits.make()
    Posting.objects.filter(account="a", amount=10).update(amount=-5)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_posting of a: amount: rebuilt 10, in use -5"):
        rebuild(Postings.name, InProcess(), nothing)


def test_an_aggregate_that_is_not_in_use_yet_has_nothing_to_be_compared_with(followed: Harness) -> None:
    followed.stored("new", Opened(owner="n"), Added(amount=1))
    rebuilt = rebuild(Balances.name, InProcess(), nothing)
    assert (rebuilt.comparison.compared, rebuilt.comparison.uncompared) == (3, [])
    assert balances()["new"] == (1, 1, 2)


def test_a_row_of_an_aggregate_that_does_not_exist_is_a_difference(followed: Harness) -> None:
    Posting.objects.create(account="nobody", amount=1)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_posting of nobody: only in use"):
        rebuild(Postings.name, InProcess(), nothing)


class FailingAlone(InProcess):
    """An engine whose replays for the comparison fail at the events of one aggregate."""

    def __init__(self, effects: Effects, id: str) -> None:
        self._effects = effects
        self._id = id

    def replay(self, plan: Plan, report: Report) -> Replayed:
        self._effects.posting = lambda event: None
        return super().replay(plan, report)

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        if shadow.generation < 0:
            self._effects.posting = self._fail
        return super().catch_up(shadow, todo)

    def _fail(self, event: DomainEvent) -> None:
        if event.aggregate_root_id == self._id:
            raise ValueError("not alone")


def test_what_could_not_be_compared_is_told_and_swapped_only_if_that_is_accepted(
    followed: Harness, effects: Effects
) -> None:
    Deposits(followed, are_followed=False).make()
    with pytest.raises(ProjectionsDiffer, match="1 aggregates were not, 2 were\n  b: not compared\nnothing"):
        rebuild(Postings.name, FailingAlone(effects, "b"), nothing)
    assert schemas() == []
    compared = rebuild(Postings.name, FailingAlone(effects, "b"), nothing, compare_only=True)
    assert (compared.figures()["uncompared"], describe(compared.comparison)) == (1, ["b: not compared"])
    assert Rebuild.objects.filter(fingerprint__isnull=False, state="swapped").count() == 0
    assert rebuild(Postings.name, FailingAlone(effects, "b"), nothing, accept_uncompared=True).is_swapped
    assert posted()["b"] == [1, 10, 1]


def test_a_table_whose_rows_nobody_can_attribute_is_compared_when_the_workers_have_come_as_far(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap waits for the workers, until the tables in use have everything that the built ones have."""
    monkeypatch.setattr(Postings, "aggregate_field", "")
    monkeypatch.setattr(putting_in_use, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr("enode_django.rebuilding.checking.LOOKS", 1)
    deposits = Deposits(followed, are_followed=False)
    deposits.make()
    waited: list[str] = []

    def let_workers_go_on(stage: str, **figures: object) -> None:
        if stage == "wait to swap":
            waited.append(stage)
            deposits.make()
            Call(follow).result()

    rebuilt = rebuild(Postings.name, InProcess(), let_workers_go_on)
    assert waited
    assert rebuilt.comparison.is_whole
    assert subscribers.get(Postings.name).name == Postings.name
    follow()
    assert posted()["a"] == [0, 10, *[1] * (deposits.version - 3)]
