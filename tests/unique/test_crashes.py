"""Workers that die or stand still between the steps of a claim. Each value ends claimed or free, and one aggregate has
it at most. A worker that is not used any more has died; one that goes on later has stood still."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.commanding.uniqueness import Uniqueness
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.unique_values import Owner, UniqueKey
from enode_django.repository.loading import AggregateLoader
from tests.races.harness import Worker
from tests.unique.domain import ChangeEmail, Join, Leave, SwapEmails, Wave, emails, handlers
from tests.unique.test_claims import REFUSED, SUCCESS, rows, taken

AT_ONCE, NEVER = 0.0, 1e9
"""Deadlines: every open claim is too old, or none is."""


def worker(store: MemoryEventStore, deadline: float = NEVER) -> Worker:
    return Worker(store, table=handlers, claim_deadline=deadline)


def dies_after_claim(store: MemoryEventStore, *commands: Command) -> Worker:
    """A worker that has claimed, and stored nothing."""
    dead = worker(store)
    dead.send(*commands)
    dead.handle()
    return dead


def settle_old(store: MemoryEventStore, deadline: float = AT_ONCE) -> int:
    return Uniqueness(AggregateLoader(store), deadline).settle_old()


def holders(store: MemoryEventStore) -> set[str]:
    assert all(row.is_settled for row in rows(store))
    return {row.aggregate_root_id for row in rows(store)}


# -- a crash after each step ------------------------------------------------------------------------------------------


def test_a_crash_after_the_claim_leaves_it_to_the_same_command() -> None:
    store, join = MemoryEventStore(), Join("a", email="x")
    dies_after_claim(store, join)
    (refused,) = worker(store).run(Join("b", email="x"))
    assert taken(refused, "email")  # the command of "a" is delivered again: until the deadline the value is its
    (again,) = worker(store).run(join)
    assert again.status is SUCCESS
    assert holders(store) == {"a"}


def test_after_the_deadline_a_claim_without_effect_is_taken_by_the_next() -> None:
    store = MemoryEventStore()
    dies_after_claim(store, Join("a", email="x"))
    (won,) = worker(store, AT_ONCE).run(Join("b", email="x"))
    assert won.status is SUCCESS
    assert holders(store) == {"b"}


def test_the_command_that_lost_its_claim_is_refused_when_it_comes_again() -> None:
    store, join = MemoryEventStore(), Join("a", email="x")
    dies_after_claim(store, join)
    worker(store, AT_ONCE).run(Join("b", email="x"))
    late = worker(store)
    (result,) = late.run(join)
    assert taken(result, "email")
    assert result.error_message == "this email is taken: it was claimed, but not stored in time; send another command"
    assert emails(store, "a", "b") == {"b": "x"}
    assert late.in_flight == 0


def test_after_the_deadline_housekeeping_frees_a_claim_without_effect() -> None:
    store, join = MemoryEventStore(), Join("a", email="x")
    dies_after_claim(store, join)
    assert settle_old(store, NEVER) == 0
    assert len(rows(store)) == 1
    assert settle_old(store) == 1
    assert rows(store) == []
    (result,) = worker(store).run(join)
    assert taken(result, "email")  # its own refusal is stored
    (result,) = worker(store).run(Join("a", email="x"))
    assert result.status is SUCCESS


def test_a_crash_after_storing_leaves_the_value_to_its_owner() -> None:
    store = MemoryEventStore()
    dead = dies_after_claim(store, Join("a", email="x"))
    dead.commit()
    (refused,) = worker(store, AT_ONCE).run(Join("b", email="x"))
    assert taken(refused, "email")
    assert holders(store) == {"a"}  # the worker that asked has settled it


def test_a_crash_after_storing_is_settled_by_housekeeping() -> None:
    store = MemoryEventStore()
    dead = dies_after_claim(store, Join("a", email="x"))
    dead.commit()
    settle_old(store)
    assert holders(store) == {"a"}


def test_a_crash_before_a_release_is_stored_changes_nothing() -> None:
    store = MemoryEventStore()
    worker(store).run(Join("a", email="x"))
    dies_after_claim(store, ChangeEmail("a", email="y"))
    for deadline in (NEVER, AT_ONCE):
        (refused,) = worker(store, deadline).run(Join("b", email="x"))
        assert taken(refused, "email")
    (won,) = worker(store, AT_ONCE).run(Join("c", email="y"))
    assert won.status is SUCCESS
    assert emails(store, "a", "c") == {"a": "x", "c": "y"}
    assert [list(row.releases) for row in rows(store) if row.aggregate_root_id == "a"] == [[2]]
    worker(store).run(Wave("a"))  # another command has made the version that might have given the value up
    settle_old(store)
    assert holders(store) == {"a", "c"}


def test_a_crash_after_a_release_is_stored_frees_the_value_at_once() -> None:
    store = MemoryEventStore()
    worker(store).run(Join("a", email="x"))
    dead = dies_after_claim(store, Leave("a"))
    dead.commit()
    (won,) = worker(store, NEVER).run(Join("b", email="x"))
    assert won.status is SUCCESS
    assert holders(store) == {"b"}


def test_a_refused_command_that_had_claimed_something_keeps_nothing() -> None:
    store = MemoryEventStore()
    one = worker(store)
    one.run(Join("a", email="x", team="red", number=1))
    (refused,) = one.run(Join("b", email="y", team="red", number=1))
    assert taken(refused, "team", "number")
    (won,) = worker(store, NEVER).run(Join("c", email="y"))  # the refusal is stored: nothing is open
    assert won.status is SUCCESS
    settle_old(store)
    assert holders(store) == {"a", "c"}


def test_housekeeping_leaves_the_values_of_newer_processes() -> None:
    """Their declaration is not known here, so the owner would seem to hold nothing."""
    store = MemoryEventStore()
    worker(store).run(Join("a", email="x"))
    key = UniqueKey("unique.Member:nickname", b"ada".ljust(32))
    store.unique_values.claim(Owner("a", 2, "of a newer process", "unique.Join"), [key], [])
    settle_old(store)
    assert key in {row.key for row in rows(store)}


def test_housekeeping_goes_past_rows_that_it_cannot_settle() -> None:
    store = MemoryEventStore()
    newer = [UniqueKey("unique.Member:nickname", bytes([number]) * 32) for number in range(3)]
    store.unique_values.claim(Owner("a", 2, "of a newer process", "unique.Join"), newer, [])
    dies_after_claim(store, Join("b", email="x"))
    uniqueness = Uniqueness(AggregateLoader(store), AT_ONCE)
    for _ in range(2):
        uniqueness.settle_old(limit=2)
    assert [row.key for row in rows(store)] == newer
    dies_after_claim(store, Join("b", email="x"))
    for _ in range(3):
        uniqueness.settle_old(limit=2)
    assert [row.key for row in rows(store)] == newer, "after the end it begins anew"


def test_housekeeping_of_many_rows_goes_by_none_that_it_can_settle() -> None:
    store = MemoryEventStore()
    for number in range(6):
        dies_after_claim(store, Join(f"b{number}", email=f"{number}"))
    uniqueness = Uniqueness(AggregateLoader(store), AT_ONCE)
    assert [uniqueness.settle_old(limit=2) for _ in range(4)] == [2, 2, 2, 0]
    assert rows(store) == []


def test_a_refused_command_leaves_its_former_value_settled() -> None:
    """Otherwise housekeeping would look into it again and again, until another command changes the aggregate."""
    store = MemoryEventStore()
    _, _, refused = worker(store).run(Join("a", email="x"), Join("b", email="y"), ChangeEmail("b", email="x"))
    assert taken(refused, "email")
    assert holders(store) == {"a", "b"}


# -- a worker that stands still ---------------------------------------------------------------------------------------


def test_a_stream_whose_claim_was_taken_is_not_stored() -> None:
    store = MemoryEventStore()
    slow = dies_after_claim(store, Join("a", email="x", id="late"))
    (won,) = worker(store, AT_ONCE).run(Join("b", email="x"))
    slow.settle()
    assert won.status is SUCCESS
    assert taken(slow.answers["late"], "email")
    assert emails(store, "a", "b") == {"b": "x"}
    assert slow.in_flight == 0


def test_what_was_built_on_a_lost_claim_is_handled_again() -> None:
    store = MemoryEventStore()
    worker(store).run(Join("a", email="w"))
    slow = dies_after_claim(
        store,
        ChangeEmail("a", email="x", id="1"),
        Wave("a", id="2"),
        SwapEmails("a", before="x", email="y", id="3"),
        ChangeEmail("a", email="z", id="4"),
    )
    worker(store, AT_ONCE).run(Join("b", email="x"))
    slow.settle()
    statuses = {id: slow.answers[id].status for id in "1234"}
    assert statuses == {"1": REFUSED, "2": SUCCESS, "3": REFUSED, "4": SUCCESS}
    assert slow.answers["3"].error_type == "unique.Unexpected"
    assert emails(store, "a", "b") == {"a": "z", "b": "x"}
    settle_old(store)
    assert holders(store) == {"a", "b"}


def test_all_claims_of_one_value_that_are_under_way_are_fenced() -> None:
    """The newest one alone would leave the first one free to be stored."""
    store = MemoryEventStore()
    slow = worker(store)
    slow.send(Join("a", email="x", id="1"), ChangeEmail("a", email="y", id="2"), ChangeEmail("a", email="x", id="3"))
    slow.handle()
    (won,) = worker(store, AT_ONCE).run(Join("b", email="x"))
    assert won.status is SUCCESS
    slow.commit(1)
    slow.settle()
    assert emails(store, "a", "b") == {"b": "x"}
    assert taken(slow.answers["1"], "email")
    assert slow.answers["2"].status is CommandStatus.FAILED  # the member does not exist
    assert taken(slow.answers["3"], "email")


def test_a_claim_that_its_own_worker_stores_meanwhile_stands() -> None:
    """The worker stores it between the question about the command's outcome and the fence."""
    store = MemoryEventStore()
    slow = dies_after_claim(store, Join("a", email="x"))

    other = worker(store, AT_ONCE)
    uniqueness = other.processor._uniqueness
    fence = uniqueness._fence

    def late(row: object, commands: object) -> None:
        slow.settle()
        fence(row, commands)  # type: ignore[arg-type]

    uniqueness._fence = late  # type: ignore[method-assign, assignment]
    (refused,) = other.run(Join("b", email="x"))
    assert taken(refused, "email")
    assert emails(store, "a", "b") == {"a": "x"}


def test_a_claim_made_while_the_value_is_looked_into_is_not_overlooked() -> None:
    """The owner has given the value up, and takes it again between the look at its state and the take-over."""
    store = MemoryEventStore()
    owner = worker(store)
    owner.run(Join("a", email="x"))
    dead = dies_after_claim(store, ChangeEmail("a", email="y"))
    dead.commit()
    other = worker(store, AT_ONCE)
    uniqueness = other.processor._uniqueness
    look, again = uniqueness._version_that_holds, [ChangeEmail("a", email="x")]

    def slowly(row: object) -> int:
        version = look(row)  # type: ignore[arg-type]
        if again:
            (result,) = worker(store).run(again.pop())
            assert result.status is SUCCESS
        return version

    uniqueness._version_that_holds = slowly  # type: ignore[method-assign, assignment]
    (refused,) = other.run(Join("b", email="x"))
    assert taken(refused, "email")
    assert emails(store, "a", "b") == {"a": "x"}


# -- conflicts --------------------------------------------------------------------------------------------------------


def test_a_command_that_is_handled_again_after_a_conflict_keeps_its_claim() -> None:
    store = MemoryEventStore()
    one, rival = worker(store), worker(store)
    one.run(Join("a", email="x"))
    one.send(ChangeEmail("a", email="y", id="change"))
    one.handle()
    rival.run(Wave("a"))  # takes version 2
    one.settle()
    assert one.answers["change"].status is SUCCESS
    assert emails(store, "a") == {"a": "y"}
    assert holders(store) == {"a"}
    assert len(rows(store)) == 1


def test_a_command_that_has_no_effect_after_a_conflict_keeps_nothing() -> None:
    store = MemoryEventStore()
    one, rival = worker(store), worker(store)
    one.run(Join("a", email="x"))
    one.send(SwapEmails("a", before="x", email="y", id="swap"))
    one.handle()
    rival.run(ChangeEmail("a", email="z"))
    one.settle()
    assert one.answers["swap"].error_type == "unique.Unexpected"
    (won,) = worker(store, NEVER).run(Join("b", email="y"))
    assert won.status is SUCCESS
    settle_old(store)
    assert holders(store) == {"a", "b"}


def test_a_copy_of_an_old_command_does_not_hold_what_was_given_up_since() -> None:
    store = MemoryEventStore()
    join, change = Join("a", email="w"), ChangeEmail("a", email="x")
    worker(store).run(join, change, ChangeEmail("a", email="y"))
    copies = worker(store)
    (again,) = copies.run(change)
    assert (again.status, again.version) == (SUCCESS, 2)
    assert emails(store, "a") == {"a": "y"}
    (won,) = worker(store, NEVER).run(Join("b", email="x"))
    assert won.status is SUCCESS


def test_two_workers_that_hold_one_aggregate_end_with_what_is_stored() -> None:
    store = MemoryEventStore()
    one, other = worker(store), worker(store)
    commands = [Join("a", email="x", id="1"), ChangeEmail("a", email="y", id="2"), ChangeEmail("a", email="x", id="3")]
    one.send(*commands)
    other.send(*commands)
    one.handle()
    other.handle(2)
    one.commit(2)
    other.settle()
    one.settle()
    settle_old(store)
    assert emails(store, "a") == {"a": "x"}
    assert holders(store) == {"a"}
    assert len(rows(store)) == 1


# -- a failover to a standby that lacks the claim ---------------------------------------------------------------------


def loses_its_claim(store: MemoryEventStore, *commands: Command) -> Worker:
    """A worker that has claimed, and lives on while the rows of its claims are lost."""
    one = dies_after_claim(store, *commands)
    for row in rows(store):
        store.unique_values.free(row)
    return one


def test_a_lost_claim_is_made_again_when_its_stream_is_stored() -> None:
    store = MemoryEventStore()
    one = loses_its_claim(store, Join("a", email="x"))
    one.settle()
    (refused,) = worker(store, AT_ONCE).run(Join("b", email="x"))
    assert taken(refused, "email")
    settle_old(store)
    assert holders(store) == {"a"}


def test_a_lost_claim_of_a_value_that_was_given_up_since_ends_free() -> None:
    store = MemoryEventStore()
    one = loses_its_claim(store, Join("a", email="x"))
    one.commit()
    worker(store).run(ChangeEmail("a", email="y"))
    one.deliver()
    settle_old(store)
    assert [row.aggregate_root_id for row in rows(store)] == ["a"]
    (won,) = worker(store, NEVER).run(Join("b", email="x"))
    assert won.status is SUCCESS


def test_a_lost_claim_of_a_value_that_another_aggregate_has_by_now_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryEventStore()
    one = loses_its_claim(store, Join("a", email="x"))
    worker(store).run(Join("b", email="x"))
    one.settle()
    assert holders(store) == {"b"}
    assert "'a' has a unique value of unique.Member:email, whose claim was lost, and so may 'b'" in caplog.text


def test_a_lost_release_frees_the_value() -> None:
    store = MemoryEventStore()
    worker(store).run(Join("a", email="x"))
    one = dies_after_claim(store, Leave("a"))
    (row,) = rows(store)
    store.unique_values.free(row)
    store.unique_values.adopt("a", 1, [row.key])
    one.settle()
    assert rows(store) == []
