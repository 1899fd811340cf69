"""``manage.py rebuildprojection``, in this process."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from enode_django.jobs.running import running_job
from enode_django.rebuilding.target import Target
from tests.following.harness import Harness
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balance, Balances, Effects
from tests.rebuilding.histories import balances, follow, some_history


@pytest.fixture
def followed(postings: Harness) -> Harness:
    some_history(postings, "a", "b", "c")
    follow()
    return postings


def run(**options: object) -> str:
    out = StringIO()
    call_command("rebuildprojection", Balances.name, master="none", stdout=out, stderr=out, **options)
    return out.getvalue()


def test_a_comparison_ends_with_an_error_if_rows_differ(followed: Harness) -> None:
    assert "0 rows differ among 3 aggregates; nothing was swapped" in run(compare_only=True)
    Balance.objects.filter(pk="b").update(total=-1)
    with pytest.raises(
        CommandError, match=r"the rebuilt tables of rebuilding.balances are not like those in use"
    ) as raised:
        run(compare_only=True, accept_differences=True)
    assert raised.value.returncode == 1
    assert schemas() == []


def test_nothing_is_swapped_if_nothing_was_kept(followed: Harness) -> None:
    with pytest.raises(CommandError, match=r"rebuilding.balances has nothing that could be swapped"):
        run(swap=True)


def test_replaced_tables_can_be_dropped(followed: Harness) -> None:
    run()
    assert len(schemas()) == 1
    before = balances()
    assert "rebuilding.balances: the tables of 1 builds were dropped; build 1 is in use" in run(drop=True)
    assert (balances(), schemas()) == (before, [])
    with pytest.raises(CommandError, match="no rebuild that could be undone"):
        run(undo=True)
    run()
    assert balances() == before


def test_after_a_comparison_the_last_rebuild_can_still_be_undone(followed: Harness) -> None:
    Balance.objects.filter(pk="b").update(total=-1)
    before = balances()
    run(accept_differences=True)
    kept = schemas()
    run(compare_only=True)
    assert schemas() == kept
    run(undo=True)
    assert balances() == before


def test_the_tables_of_a_running_rebuild_are_not_dropped(followed: Harness) -> None:
    with running_job("rebuild", Target.of(Balances.name).key), pytest.raises(CommandError, match="wait for its end"):
        run(drop=True)


def test_a_rebuild_stops_after_a_number_of_failures(followed: Harness, effects: Effects) -> None:
    def fail(row: Balance, event: object) -> None:
        raise ValueError("not a single one")

    some_history(followed, *(f"n{number:02}" for number in range(40)))
    effects.balance = fail
    before = balances()
    told = r"rebuilding.balances fails at more than 5 aggregates, the last is \S+ at version 2: .*not a single one"
    with pytest.raises(CommandError, match=told):
        run(max_failures=5, accept_differences=True)
    assert (balances(), schemas()) == (before, [])
    effects.balance = lambda row, event: None if row.aggregate_root_id < "n" else fail(row, event)
    assert "40 parked" in run(max_failures=40, sample=0)
