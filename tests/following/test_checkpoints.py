"""What the functions of `enode_django.eventing.checkpoints` promise to several subscribers and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from django.db import connection, transaction

from enode_django.eventing import checkpoints
from enode_django.eventstore.positions import Position
from enode_django.models import Checkpoint, Subscription
from tests.integration.store_sessions import wait_until
from tests.outbox.harness import another_thread, holds_somebody_up, read_rows_as_they_lie

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


# -- several processes ------------------------------------------------------------------------------------------------

IDS = [f"a{number:02}" for number in range(19, -1, -1)]
"""In the order in which a batch may name them."""
FIRST, OTHERS = IDS[-1], IDS[:-1]


def in_transaction(write: Callable[[Sequence[str]], object], ids: Sequence[str]) -> None:
    with transaction.atomic():
        write(ids)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_waits_for_a_checkpoint_keeps_no_later_one_locked() -> None:
    """So workers never wait for each other in a circle."""
    for id in IDS:
        checkpoints.save(ALIAS, "one", {id: 1})
    with another_thread() as elsewhere:
        elsewhere(read_rows_as_they_lie).result(60)
        with transaction.atomic():
            checkpoints.lock_known(ALIAS, "one", [FIRST])
            locking = elsewhere(lambda: in_transaction(partial(checkpoints.lock, ALIAS, "one"), IDS))
            wait_until(holds_somebody_up)
            assert len(Checkpoint.objects.select_for_update(nowait=True)) == len(IDS)
        locking.result(60)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "write",
    [
        partial(checkpoints.make, ALIAS, "one"),
        lambda ids: checkpoints.save(ALIAS, "one", dict.fromkeys(ids, 1)),
        lambda ids: checkpoints.save_refusals(ALIAS, "one", [(id, "command") for id in ids]),
    ],
    ids=["make", "save", "save_refusals"],
)
def test_a_worker_that_waits_for_a_new_checkpoint_has_written_no_later_one(
    write: Callable[[Sequence[str]], object],
) -> None:
    with another_thread() as elsewhere:
        with transaction.atomic():
            write([FIRST])
            writing = elsewhere(lambda: in_transaction(write, IDS))
            wait_until(holds_somebody_up)
            connection.cursor().execute("SET LOCAL lock_timeout = 200")
            write(OTHERS)  # nobody has to be waited for
        writing.result(60)
