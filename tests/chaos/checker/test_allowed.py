"""Runs that break no promise, although they look unusual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from chaos.checker.facts import Acquired, Appended, Committed, Facts, Handled, OffsetSet, Sample
from chaos.checker.rules import violations
from tests.chaos.checker.altering import without_command
from tests.chaos.checker.breaking_store import failure_of_what_is_stored
from tests.chaos.checker.builder import COMMANDS, EVENTS, GROUP, OBSERVER, queue_of, small_world


def events_that_are_handled_again() -> Facts:
    """After a crash, another process handles them again from the checkpoint on."""
    facts = small_world().facts()
    again = [line._replace(at=line.at + 1e6) for line in facts.handled[3:]]
    return replace(facts, handled=[*again, *facts.handled])


def streams_that_retention_has_deleted() -> Facts:
    """The events topic begins later; a refusal of an aggregate in the deleted part cannot be found either."""
    facts = small_world().facts()
    published = [m for m in facts.published or () if m.queue != queue_of("ada") or m.offset >= 4]
    assert len(published) < len(facts.published or ())
    log = [r for r in facts.log if not isinstance(r, Appended) or r.topic != EVENTS or r.queue != queue_of("ada")]
    first = Appended("log", EVENTS, queue_of("ada"), 4, len(facts.published or ()))
    return replace(
        facts, published=published, trimmed=frozenset({queue_of("ada")}), log_is_whole=False, log=[first, *log]
    )


def republication_of_what_retention_has_deleted() -> Facts:
    """An old version is published once more, when its first publication is gone."""
    facts = streams_that_retention_has_deleted()
    row = facts.histories["ada"][0]
    published = facts.published or ()
    message = published[0]._replace(
        queue=queue_of("ada"), aggregate_root_id="ada", version=1, command_id=row.command_id, digest=row.digest
    )
    return replace(facts, published=[*published, message])


def an_aggregate_that_moves_to_an_added_queue() -> Facts:
    """Its first stream is published once more there, after newer ones."""
    facts = small_world().facts()
    published = [*(facts.published or ())]
    old = [m for m in published if m.aggregate_root_id == "ada" and m.version is not None]
    moved = [m._replace(queue=m.queue + 10) for m in (*old[2:], old[0])]
    rest = [m for m in published if m not in old[2:]]
    return replace(facts, published=[*rest, *moved], widened=frozenset({EVENTS}))


def a_group_that_was_set_back_by_hand() -> Facts:
    facts = small_world().facts()
    moved = (GROUP, EVENTS, 0)
    log = [*facts.log, Acquired("log", moved, "one", 50), Committed("log", moved, 50, 1), OffsetSet("log", moved)]
    log += [Acquired("log", moved, "one", 51), Committed("log", moved, 51, 0)]
    samples = [Sample(1.0, moved, 1, "one", 50), Sample(2.0, moved, 0, "one", 51)]
    return replace(facts, log=log, samples=[*facts.samples, *samples])


def a_broker_that_was_just_started() -> Facts:
    """It shows no owner and no epoch until the owners have come back."""
    facts = small_world().facts()
    last = facts.samples[-1]
    between = last._replace(owner="", epoch=0)
    return replace(facts, samples=[*facts.samples, between, last._replace(epoch=last.epoch + 1)])


def commands_without_a_trace() -> Facts:
    """Nobody waited for them: they changed nothing, or failed without a refusal."""
    world = small_world()
    for name, id, fields in (
        ("bank.CloseAccount", "eve", {}),
        ("bank.OpenAccount", "ada", {"owner": "another"}),
        ("bank.Deposit", "nobody", {"amount": Decimal(1)}),
        ("bank.CancelTransfer", "t2", {"reason": "again"}),
        ("notes.ChangeTitle", "n1", {"title": "second"}),
        ("notes.DeleteNote", "n2", {}),
    ):
        world.do(name, id, **fields)
    facts = world.facts()
    return replace(facts, answers=facts.answers[:-6])


def a_command_among_the_dead_letters() -> Facts:
    world = small_world()
    command = world.do("bank.Deposit", "ada", amount=Decimal(0))
    facts = world.facts()
    sends = facts.sends
    facts = without_command(facts, command)
    gone = (command, "ada")
    return replace(
        facts,
        sends=sends,
        dead=frozenset({gone}),
        stored=[row for row in facts.stored if row.key != gone],
        published=[message for message in facts.published or () if message.key != gone],
    )


def an_answer_that_came_twice() -> Facts:
    facts = small_world().facts()
    return replace(facts, answers=[*facts.answers, *facts.answers])


def copies_on_an_added_queue_with_other_answers() -> Facts:
    """The worker of that queue does not know answers that left no row."""
    first = replace(failure_of_what_is_stored(), widened=frozenset({COMMANDS}))
    nothing = next(answer for answer in first.answers if answer.status == "NOTHING_CHANGED")
    return replace(first, answers=[*first.answers, nothing._replace(status="FAILED", error_type="Exploded")])


def a_client_that_cancels_in_time() -> Facts:
    world = small_world()
    world.do("bank.StartTransfer", "t5", source="ada", target="bob", amount=Decimal(1))
    world.do("bank.CancelTransfer", "t5", reason="changed my mind")
    return world.facts()


def a_client_that_cancels_too_late() -> Facts:
    world = small_world()
    world.do("bank.CancelTransfer", "t1", reason="changed my mind")
    return world.facts()


ALLOWED: list[Callable[[], Facts]] = [
    events_that_are_handled_again,
    streams_that_retention_has_deleted,
    republication_of_what_retention_has_deleted,
    an_aggregate_that_moves_to_an_added_queue,
    a_group_that_was_set_back_by_hand,
    a_broker_that_was_just_started,
    commands_without_a_trace,
    a_command_among_the_dead_letters,
    an_answer_that_came_twice,
    copies_on_an_added_queue_with_other_answers,
    a_client_that_cancels_in_time,
    a_client_that_cancels_too_late,
]


@pytest.mark.parametrize("history", ALLOWED, ids=lambda history: history.__name__)
def test_this_breaks_no_rule(history: Callable[[], Facts]) -> None:
    assert list(violations(history())) == []


def test_events_of_one_version_have_an_order_of_their_own() -> None:
    """The second event of a version must not come before the first."""
    facts = small_world().facts()
    assert Handled(facts.handled[0].at, OBSERVER, "ada", 1, "ada/1/0") == facts.handled[0]
    early = [line._replace(at=line.at - 1e-6) if line.event_id.endswith("/1") else line for line in facts.handled]
    texts = [violation.text for violation in violations(replace(facts, handled=early))]
    assert len(texts) == 2  # a transfer is confirmed, and is completed, by the second event of a version
    assert all("when it had handled only" in text for text in texts)
