"""The table "What a crash at each step leads to" of the read side, line by line: an event worker dies there, and
another one gets the same messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from enode_django.eventing import checkpoints
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from tests.docs.pages import DOCS, tables
from tests.following import domain
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, handler_group
from tests.following.harness import Harness


class Died(BaseException):
    """Stands for the death of the process: no code of the package catches it."""


class Case(NamedTuple):
    """A line of the table: ``row`` is its first cell. ``saved`` says whether the first worker's work counts; ``told``
    is the number of notices that a waiting sender gets."""

    row: str
    saved: bool
    told: int


CASES = [
    Case("before it pulled", False, 1),
    Case("while handlers run", False, 1),
    Case("after the handlers, before the commit", False, 1),
    Case("after the commit, before telling who waits", True, 1),
    Case("after telling, before the offset is committed", True, 2),
]
KINDS = ("model projection", "projection", "process manager", "event handler")


def subscriber_of(kind: str) -> Subscriber:
    classes = {"model projection": CounterRows, "projection": Entries, "process manager": Kindness}
    return subscribers.instance(classes[kind]) if kind in classes else handler_group()


def let_die(
    row: str,
    subscription: EventSubscription,
    harness: Harness,
    records: Sequence[StreamRecord],
    patch: pytest.MonkeyPatch,
) -> None:
    """Let the first worker handle the records, and die at the step of ``row``."""
    behaviour = domain.behaviour

    def die(*arguments: object) -> None:
        raise Died

    with patch.context() as dying:
        if row == "before it pulled":
            return
        if row == "while handlers run":
            handle = behaviour.handle
            dying.setattr(behaviour, "handle", lambda one: die() if one.aggregate_root_id == "d" else handle(one))
        elif row == "after the handlers, before the commit":
            dying.setattr(checkpoints, "save", die)
            dying.setattr(checkpoints, "move_cursor", die)
        elif row == "after the commit, before telling who waits":
            dying.setattr(subscription, "_notify", die)
        if row == "after telling, before the offset is committed":
            harness.deliver(subscription, records, "inbox")
            return
        with pytest.raises(Died):
            harness.deliver(subscription, records, "inbox")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=[case.row for case in CASES])
def test_a_crash_leads_to_what_the_table_says(
    case: Case, kind: str, harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [stream for id in "cd" for stream in harness.stored(id, Opened(owner="ann"), Added(amount=3))]
    first = Harness()
    let_die(case.row, first.subscription(subscriber_of(kind)), first, records, monkeypatch)
    called = list(behaviour.calls)
    behaviour.calls.clear()

    second = Harness()
    second.deliver(second.subscription(subscriber_of(kind)), records, "inbox")
    assert bool(behaviour.calls) is not case.saved
    assert second.window.unfinished == 0
    notices = [notice for harness in (first, second) for address, notice in harness.notices if address == "inbox"]
    handled = [records[0], records[2]] if kind == "process manager" else [records[1], records[3]]
    assert all(sum(n.command_id == record.command_id for n in notices) == case.told for record in handled)

    if kind == "model projection":
        assert harness.rows() == {"c": ("ann", 3, 2), "d": ("ann", 3, 2)}
    elif kind == "projection":
        assert [harness.entries(id) for id in "cd"] == [[(2, 3)], [(2, 3)]]
    elif kind == "process manager":
        assert len({command.id for command in [*first.sent, *second.sent]}) == 4
        twice = case.row == "after the handlers, before the commit"
        assert len([*first.sent, *second.sent]) == (8 if twice else 4)
    else:
        events = {"c/2/0", "d/2/0"}
        assert events <= {*called, *behaviour.calls}
        again = {"while handlers run": {"c/2/0"}, "after the handlers, before the commit": events}
        assert {*called} & {*behaviour.calls} - {"second"} == again.get(case.row, set())


def test_every_line_of_the_table_has_its_crash() -> None:
    (rows,) = (
        table
        for table in tables(DOCS / "discussions" / "exactly-once.md")
        if table and table[0][0] == "before it pulled"
    )
    assert [row[0] for row in rows] == [case.row for case in CASES]
