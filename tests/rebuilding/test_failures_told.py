"""What is told about aggregates whose handlers fail in a rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from enode_django import DomainEvent
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ProjectionsDiffer
from enode_django.rebuilding import checking
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from tests.following.harness import Harness
from tests.following.orders import CustomerTotals, order, trouble
from tests.following.test_multi_projections import stored
from tests.rebuilding.conftest import drop_schemas, schemas
from tests.rebuilding.domain import Balances, Effects
from tests.rebuilding.histories import follow, nothing, some_history
from tests.rebuilding.tables import sql

B_FAILED = "b failed at version 3: RuntimeError: oops"
NOT_ALIKE = "the rebuilt tables of {} are not like those in use"


def oops(event: DomainEvent) -> None:
    if (event.aggregate_root_id, event.version) == ("b", 3):
        raise RuntimeError("oops\nand more")


@pytest.fixture
def counters(postings: Harness, effects: Effects) -> Harness:
    """Aggregates that `Balances` has followed, before its code began to fail at version 3 of b."""
    some_history(postings, "a", "b", "c")
    follow()
    effects.balance = lambda row, event: oops(event)
    return postings


@pytest.fixture
def shop(orders: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """The same for `CustomerTotals`, whose rows are only compared as a whole. A pause fails the test."""

    def impatient(seconds: float) -> None:
        raise AssertionError("waits for a moment that will not come")

    with subscribers.only(CustomerTotals):
        for id in "abc":
            stored(orders, id, order("ada", 1), order("all", 1), order("ada", 1), order("all", 1))
        follow(CustomerTotals)
        trouble.happens = oops
        monkeypatch.setattr(checking, "pause", impatient)
        yield orders
    drop_schemas()


def run(name: str, **options: object) -> tuple[str, str]:
    """Return what the command writes, and the text of its error."""
    out, error = StringIO(), ""
    try:
        call_command("rebuildprojection", name, master="none", stdout=out, stderr=out, **options)
    except CommandError as raised:
        error = str(raised)
    return out.getvalue(), error


def test_a_comparison_says_what_failed_and_that_nothing_is_parked(counters: Harness) -> None:
    said, error = run(Balances.name, compare_only=True)
    assert f"\n{B_FAILED}\n" in said
    assert "  b: rebuilt up to version 2, in use up to version 3: it failed\n" in said
    assert ", 1 failed; 0 rows differ among 2 aggregates" in said
    assert "parked" not in said
    assert error == f"{NOT_ALIKE.format(Balances.name)}: 1 aggregate failed; mend the handlers and run it again"
    assert schemas() == []


def test_the_error_of_a_rebuild_says_first_what_failed(counters: Harness) -> None:
    _, error = run(Balances.name)
    assert error.splitlines() == [
        f"1 aggregate failed, so {NOT_ALIKE.format(Balances.name)}: 0 rows differ among 2 aggregates, and 1 aggregate "
        "has not come as far",
        f"  {B_FAILED}",
        "  b: rebuilt up to version 2, in use up to version 3: it failed",
        "nothing was swapped; mend the handlers and run it again, or accept the differences: what failed is then "
        "parked",
    ]


def test_a_swap_says_what_is_parked_and_why(counters: Harness) -> None:
    said, error = run(Balances.name, accept_differences=True)
    assert "\nparked: b failed at version 3: RuntimeError: oops; see manage.py enode parked list\n" in said
    assert ", 1 parked; " in said
    assert error == ""


def test_an_aggregate_that_is_missing_in_the_store_is_not_said_to_be_parked(counters: Harness) -> None:
    sql("DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 'b'")
    _, error = run(Balances.name)
    assert "b: rebuilt up to version 0, in use up to version 3: the store has no more of it, or its type is" in error
    assert "parked" not in error
    assert "if new code or a correction means that, accept the differences" in error


def test_rows_of_many_aggregates_are_not_waited_for_if_one_has_failed(
    shop: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """The aggregate will not come as far in the rebuilt tables at any moment."""
    said, error = run(CustomerTotals.name, compare_only=True)
    assert f"\n{B_FAILED}\n" in said
    assert "its later events are left out of what is built" in caplog.text
    assert "  following_customertotal: not compared: 1 aggregate has not come as far, and its rows" in said
    assert "events kept coming" not in said
    assert ", the rows of following_customertotal were not compared; nothing was swapped" in said
    assert error.endswith("1 aggregate failed; mend the handlers and run it again")
    with pytest.raises(ProjectionsDiffer, match="following_customertotal: not compared: 1 aggregate has not come as"):
        rebuild(CustomerTotals.name, InProcess(), nothing)


def test_a_job_shows_what_failed(counters: Harness) -> None:
    compared = rebuild(Balances.name, InProcess(), nothing, compare_only=True).figures()
    assert (compared["parked"], compared["failures"]) == ([], [["b", "version 3", "RuntimeError: oops"]])
    swapped = rebuild(Balances.name, InProcess(), nothing, accept_differences=True).figures()
    assert (swapped["parked"], swapped["failures"]) == (["b"], [["b", "version 3", "RuntimeError: oops"]])
