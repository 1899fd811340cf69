"""What the functions of `enode_django.eventing.checkpoints` promise to several subscribers and processes."""

from __future__ import annotations

import pytest

from enode_django.eventing import checkpoints
from enode_django.eventstore.positions import Position
from enode_django.models import Checkpoint, Subscription

pytestmark = pytest.mark.django_db

ALIAS = "default"


def test_a_late_worker_does_not_lower_a_version() -> None:
    checkpoints.save(ALIAS, "one", {"a": 3, "b": 1})
    checkpoints.save(ALIAS, "one", {"a": 2, "b": 2})
    assert checkpoints.read(ALIAS, "one", ["a", "b"]) == {"a": 3, "b": 2}


def test_only_who_moves_a_version_is_told_so() -> None:
    """Who is not writes no deadlines: a later event may have cancelled them."""
    checkpoints.save(ALIAS, "one", {"a": 3, "b": 1})
    moved = checkpoints.move_cursor(ALIAS, "one", {"a": 3, "b": 2})
    assert moved is not None
    assert moved.fetchall() == [("b",)]


def test_a_late_worker_does_not_set_the_sweep_back() -> None:
    checkpoints.subscribe(ALIAS, "one", 0, Position(0, 5))
    for transaction_id in (9, 7):
        checkpoints.save_swept(ALIAS, "one", 0, Position(0, transaction_id))
    known = checkpoints.subscription(ALIAS, "one", 0)
    assert known is not None
    assert known.swept_position == Position(0, 9)


def test_a_handled_refusal_is_of_one_subscriber_one_aggregate_and_one_command() -> None:
    checkpoints.save_refusals(ALIAS, "one", [("a", "x"), ("b", "y")])
    wanted = [("a", "x"), ("a", "y"), ("b", "x")]
    assert checkpoints.handled_refusals(ALIAS, "one", wanted) == {("a", "x")}
    assert checkpoints.handled_refusals(ALIAS, "two", wanted) == set()


def test_a_subscriber_forgets_its_own_refusals_alone() -> None:
    for subscriber in ("one", "two"):
        checkpoints.save_refusals(ALIAS, subscriber, [("a", "x")])
    old = checkpoints.old_refusals(ALIAS, "one", "-1 seconds", 10)
    checkpoints.forget_refusals(ALIAS, "one", old)
    assert checkpoints.handled_refusals(ALIAS, "one", [("a", "x")]) == set()
    assert checkpoints.handled_refusals(ALIAS, "two", [("a", "x")]) == {("a", "x")}


def test_what_was_locked_without_a_row_leaves_none() -> None:
    checkpoints.claim(ALIAS, "one", ["digest"])
    assert not Checkpoint.objects.exists()


def test_a_subscription_is_kept_since_it_was_first_said() -> None:
    checkpoints.subscribe(ALIAS, "one", 0, Position(0, 5))
    Subscription.objects.update(kept_since="2020-01-01T00:00:00Z")
    assert checkpoints.keep(ALIAS, "one", is_kept=True)
    ((_, _, kept_since),) = checkpoints.subscriptions(ALIAS)
    assert kept_since is not None
    assert kept_since.year == 2020
