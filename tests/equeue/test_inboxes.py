from __future__ import annotations

from enode_django.equeue.broker.inboxes import FORGOTTEN_AFTER, MOST_ANSWERS, Inboxes
from enode_django.equeue.portions import PORTION_ITEMS


def test_answers_are_given_again_until_they_have_arrived() -> None:
    inboxes = Inboxes(100)
    inbox = inboxes.open("a", 0.0)
    for body in (b"1", b"2"):
        inboxes.reply("a", body, 0.0)
    following, bodies = inbox.given()
    assert (following, bodies) == (102, [b"1", b"2"])
    inboxes.reply("a", b"3", 0.0)
    assert inbox.given() == (103, [b"1", b"2", b"3"])
    inbox.arrived(following)
    assert inbox.given() == (103, [b"3"])
    inbox.arrived(0)  # a client that knows another run of the broker does this
    assert inbox.given() == (103, [b"3"])


def test_answer_to_nobody_is_dropped() -> None:
    inboxes = Inboxes(0)
    assert inboxes.reply("a", b"x", 0.0) is None
    inboxes.open("a", 0.0)
    inboxes.close("a")
    inboxes.close("a")
    assert inboxes.reply("a", b"x", 0.0) is None


def test_an_inbox_that_nobody_empties_keeps_the_newest_answers() -> None:
    inboxes = Inboxes(0)
    inbox = inboxes.open("a", 0.0)
    for number in range(MOST_ANSWERS + 10):
        inboxes.reply("a", b"%d" % number, 0.0)
    following, bodies = inbox.given()
    assert bodies[0] == b"10"
    assert (len(bodies), following) == (PORTION_ITEMS, PORTION_ITEMS + 10)
    assert inbox.size == sum(map(len, inbox.bodies))


def test_silent_inboxes_are_forgotten() -> None:
    inboxes = Inboxes(0)
    for address in ("silent", "waiting"):
        inboxes.open(address, 0.0)
    inboxes.open("busy", FORGOTTEN_AFTER)
    inboxes.forget(FORGOTTEN_AFTER + 1, {"waiting"})
    assert inboxes.reply("silent", b"x", 0.0) is None
    assert inboxes.reply("waiting", b"x", 0.0) is not None
    assert inboxes.reply("busy", b"x", 0.0) is not None


def test_who_comes_back_after_being_forgotten_gets_what_is_answered_then() -> None:
    inboxes = Inboxes(100)
    inbox = inboxes.open("a", 0.0)
    for _ in range(3):
        inboxes.reply("a", b"old", 0.0)
    following, _ = inbox.given()
    inboxes.forget(FORGOTTEN_AFTER + 1)
    again = inboxes.open("a", FORGOTTEN_AFTER + 2, following)
    inboxes.reply("a", b"new", 0.0)
    again.arrived(following)
    assert again.given() == (following + 1, [b"new"])


def test_answers_soon_after_a_start_are_kept_for_those_that_come_back() -> None:
    inboxes = Inboxes(100, returning_until=60.0)
    inboxes.reply("a", b"1", 59.0)
    assert inboxes.reply("b", b"x", 60.0) is None
    again = inboxes.open("a", 61.0, 42)
    again.arrived(42)
    assert again.given() == (101, [b"1"])
    inboxes.forget(59.0 + FORGOTTEN_AFTER + 61.0)
    assert not inboxes._inboxes
