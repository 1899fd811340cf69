"""Runs in which one promise about answers, rows or the read side is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from chaos.checker.decoding import Stream
from chaos.checker.facts import (
    Answer,
    Appended,
    Facts,
    Handled,
    Parked,
)
from tests.chaos.checker.altering import (
    answer_with,
    changed,
    end_of,
    place_of,
    rebuilt,
    row_of,
    with_answer,
    with_fields,
    with_row,
    with_rows,
    without_command,
)
from tests.chaos.checker.bank import Account
from tests.chaos.checker.builder import (
    COMMANDS,
    OBSERVER,
    small_world,
    stream,
)


def success_with_another_version() -> Facts:
    facts = small_world().facts()
    return with_answer(facts, answer_with(facts, "SUCCESS"), version=7)


def success_with_another_value() -> Facts:
    facts = small_world().facts()
    return with_answer(facts, place_of(facts.answers, lambda answer: answer.value is not None), value="3.00")


def success_of_a_refused_command() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.answers, lambda answer: "." in answer.error_type)
    return with_answer(facts, place, status="SUCCESS", version=1, error_type="")


def success_of_what_is_not_stored() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.answers, lambda answer: answer.error_type == "AggregateNotFound")
    return with_answer(facts, place, status="SUCCESS", version=1, error_type="")


def failure_of_what_is_stored() -> Facts:
    facts = small_world().facts()
    return with_answer(facts, answer_with(facts, "SUCCESS"), status="FAILED", version=None, error_type="Exploded")


def nothing_changed_by_what_is_stored() -> Facts:
    facts = small_world().facts()
    return with_answer(facts, answer_with(facts, "SUCCESS"), status="NOTHING_CHANGED")


def refusal_that_is_not_stored() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.answers, lambda answer: answer.error_type == "AggregateNotFound")
    return with_answer(facts, place, status="REFUSED", error_type="bank.InsufficientFunds")


def refusal_of_another_kind() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.answers, lambda answer: answer.error_type == "bank.InsufficientFunds")
    return with_answer(facts, place, error_type="bank.AccountIsClosed")


def command_without_an_end() -> Facts:
    """A deposit on an account that is there is stored, or refused; this one is gone."""
    world = small_world()
    command = world.do("bank.Deposit", "ada", amount=Decimal(0))
    facts = world.facts()
    rows = [row for row in facts.stored if row.command_id != command]
    answers = [answer for answer in facts.answers if answer.command_id != command]
    return replace(with_rows(facts, rows), answers=answers)


def commands_that_nobody_consumed() -> Facts:
    facts = small_world().facts()
    return replace(facts, log=[*facts.log, Appended("log", COMMANDS, 0, end_of(facts, COMMANDS, 0), 2)])


def answers_that_differ() -> Facts:
    facts = small_world().facts()
    answer = facts.answers[answer_with(facts, "NOTHING_CHANGED")]
    return replace(facts, answers=[*facts.answers, answer._replace(status="FAILED", error_type="Exploded")])


def stored_answers_that_differ_though_queues_were_added() -> Facts:
    facts = small_world().facts()
    answer = next(one for one in facts.answers if one.status == "REFUSED")
    other = answer._replace(error_message="another one")
    return replace(facts, answers=[*facts.answers, other], widened=frozenset({COMMANDS}))


def answer_to_nobody() -> Facts:
    facts = small_world().facts()
    return replace(facts, answers=[*facts.answers, Answer("c999", "ada", "FAILED", error_type="Exploded")])


def answer_of_another_aggregate() -> Facts:
    facts = small_world().facts()
    return with_answer(facts, answer_with(facts, "NOTHING_CHANGED"), aggregate_root_id="ada")


def version_that_is_passed_over() -> Facts:
    world = small_world()
    world.jump = True
    world.do("bank.Deposit", "ada", amount=Decimal(1))
    world.do("bank.Deposit", "ada", amount=Decimal(1))
    return world.facts()


def version_that_is_there_twice() -> Facts:
    """Deposits and withdrawals of two workers that both took the account for their own."""
    facts = small_world().facts()
    place = row_of(facts, "bank.Withdraw")
    twin = rebuilt(facts.stored[place], command_id="c2")
    return replace(facts, stored=[*facts.stored, twin])


def aggregate_in_two_shards() -> Facts:
    facts = small_world().facts()
    return replace(facts, stored=changed(facts.stored, 3, replace(facts.stored[3], shard=1)))


def command_that_nobody_sent() -> Facts:
    world = small_world()
    command = world.do("bank.Deposit", "ada", amount=Decimal(1))
    return without_command(world.facts(), command)


def command_of_another_type_than_was_sent() -> Facts:
    facts = small_world().facts()
    return with_row(facts, row_of(facts, "bank.CloseAccount"), command_type="bank.Deposit")


def amount_that_nobody_sent() -> Facts:
    """The money adds up, but the amount differs from the one that the client has paid in."""
    world = small_world()
    world.do("bank.Deposit", "ada", amount=Decimal(7))
    facts = world.facts()
    send = facts.sends[-1]
    return replace(facts, sends=[*facts.sends[:-1], send._replace(fields={"amount": "8"})])


def owner_that_nobody_sent() -> Facts:
    facts = small_world().facts()
    return replace(facts, sends=changed(facts.sends, 0, facts.sends[0]._replace(fields={"owner": "Eve"})))


def event_of_an_unknown_type() -> Facts:
    facts = small_world().facts()
    place = row_of(facts, "bank.CloseAccount")
    facts = with_row(facts, place, payload=stream([("bank.AccountClosed", {}), ("bank.AccountBurnt", {})]))
    return replace(facts, handled=[*facts.handled, Handled(9e9, OBSERVER, "eve", 2, "eve/2/1")])


def note_that_changes_after_its_end() -> Facts:
    world = small_world()
    note = world.state["n2"]
    note.deleted = False  # type: ignore[union-attr]
    world.do("notes.ChangeTitle", "n2", title="undead")
    note.deleted = True  # type: ignore[union-attr]
    return world.facts()


def event_that_was_not_handled() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.handled, lambda line: line.event_id == "t1/5/1")
    return replace(facts, handled=changed(facts.handled, place))


def event_that_was_handled_too_early() -> Facts:
    facts = small_world().facts()
    place = place_of(facts.handled, lambda line: line.event_id == "ada/2/0")
    return replace(facts, handled=changed(facts.handled, place, facts.handled[place]._replace(at=0.0)))


def event_that_is_not_stored_was_handled() -> Facts:
    facts = small_world().facts()
    return replace(facts, handled=[*facts.handled, Handled(9e9, OBSERVER, "ada", 99, "ada/99/0")])


def checkpoint_that_is_behind() -> Facts:
    facts = small_world().facts()
    return replace(facts, checkpoints={**facts.checkpoints, ("bank.transfers", "ada"): 1})


def checkpoint_that_is_missing() -> Facts:
    facts = small_world().facts()
    return replace(facts, checkpoints={key: at for key, at in facts.checkpoints.items() if key[1] != "n2"})


def aggregate_that_is_parked() -> Facts:
    return replace(small_world().facts(), parked=[Parked("bank.Ledger", "ada", 3, "ValueError")])


def balance_that_is_shown_wrong() -> Facts:
    return _with_table("bank_accountsummary", lambda rows: changed(rows, 0, (*rows[0][:3], Decimal(1), *rows[0][4:])))


def row_that_is_behind() -> Facts:
    return _with_table("notes_note", lambda rows: changed(rows, 0, (rows[0][0], 1, *rows[0][2:])))


def booking_that_is_missing() -> Facts:
    return _with_table("bank_ledgerentry", lambda rows: changed(rows, 1))


def booking_that_is_there_twice() -> Facts:
    return _with_table("bank_ledgerentry", lambda rows: [*rows, rows[0]])


def note_that_came_back() -> Facts:
    return _with_table("notes_note", lambda rows: [*rows, ("n2", 2, "other", 0)])


def _with_table(name: str, change: Callable[[Sequence[Any]], Sequence[Any]]) -> Facts:
    facts = small_world().facts()
    return replace(facts, tables={**facts.tables, name: change(facts.tables[name])})


def follow_up_that_is_lost() -> Facts:
    """The note of the second movement never came, so the transfer is half done."""
    world = small_world()
    world.do("bank.StartTransfer", "t3", source="ada", target="bob", amount=Decimal(1))
    world.settle()
    facts = world.facts()
    last = max(place for place, row in enumerate(facts.stored) if row.aggregate_root_id == "t3")
    version = facts.stored[last].version
    handled = [line for line in facts.handled if (line.aggregate_root_id, line.version) != ("t3", version)]
    checkpoints = {**facts.checkpoints, ("bank.transfers", "t3"): (version or 0) - 1}
    facts = with_rows(facts, changed(facts.stored, last))
    return replace(facts, handled=handled, checkpoints=checkpoints)


def follow_up_under_another_id() -> Facts:
    """The process manager has made up an id: a repeat of the event would let its command take effect twice."""
    facts = small_world().facts()
    place = row_of(facts, "bank.NoteMoved")
    row = rebuilt(facts.stored[place], command_id="made-up")
    published = [
        message._replace(command_id="made-up", digest=row.digest) if message.key == facts.stored[place].key else message
        for message in facts.published or ()
    ]
    return replace(facts, stored=changed(facts.stored, place, row), published=published)


def reservation_that_outlives_its_transfer() -> Facts:
    """The cancelled transfer's reservation is never let go of."""
    world = small_world()
    world.do("bank.Deposit", "ada", amount=Decimal(50))
    world.do("bank.StartTransfer", "t4", source="ada", target="nobody", amount=Decimal(2))
    ada = world.state["ada"]
    assert isinstance(ada, Account)
    while not any(name == "bank.CancelReservation" for name, *_ in world.waiting):
        world._execute(*world.waiting.popleft())
    world.waiting = type(world.waiting)(one for one in world.waiting if one[1] != "ada")
    return world.facts()


def balance_that_does_not_follow() -> Facts:
    """A deposit adds more than its amount. All that follows says the same."""
    world = small_world()
    ada = world.state["ada"]
    assert isinstance(ada, Account)
    ada.balance += 1
    world.do("bank.Deposit", "ada", amount=Decimal(1))
    facts = world.facts()
    row = list(facts.tables["bank_accountsummary"][0])
    row[4] -= 1  # the available amount is a sum
    table = changed(facts.tables["bank_accountsummary"], 0, tuple(row))
    return replace(facts, tables={**facts.tables, "bank_accountsummary": table})


def balance_below_zero() -> Facts:
    world = small_world()
    bob = world.state["bob"]
    assert isinstance(bob, Account)
    bob.balance += 1000
    world.do("bank.Withdraw", "bob", amount=Decimal(900))
    bob.balance -= 1000
    facts = world.facts()
    place = len(facts.stored) - 1
    row = with_fields(facts.stored[place], balance=bob.balance)
    contents = row.contents
    assert isinstance(contents, Stream)
    events = [(event.type_name, dict(event.fields)) for event in contents.events]
    row = rebuilt(row, payload=stream(events, bob.balance))
    facts = with_rows(facts, changed(facts.stored, place, row))
    ledger = facts.tables["bank_ledgerentry"]
    ledger = changed(ledger, -1, (*ledger[-1][:4], bob.balance, *ledger[-1][5:]))
    answers = changed(facts.answers, -1, facts.answers[-1]._replace(value=str(bob.balance)))
    return replace(facts, answers=answers, tables={**facts.tables, "bank_ledgerentry": ledger})
