"""The checker of the other tests finds each violation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from enode_django import Command, CommandResult, CommandStatus
from enode_django.bus.results import failure, stored_result
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.buckets import bucket_of, even_shares
from enode_django.exceptions import AggregateNotFound
from enode_django.serialization.codec import encode_refusal, encode_stream
from sample_project.bank.domain import AccountOpened, Deposit, Deposited, InsufficientFunds, OpenAccount, Withdraw
from tests.acceptance.invariants import Facts, misplaced, violations
from tests.acceptance.journal import Journal

ACCOUNT = "account"
OPEN = OpenAccount(ACCOUNT, owner="somebody", id="open")
DEPOSIT = Deposit(ACCOUNT, amount=Decimal(5), id="deposit")
WITHDRAW = Withdraw(ACCOUNT, amount=Decimal(9), id="withdraw")
GHOST = Deposit("ghost", amount=Decimal(5), id="ghost")


def row(command: Command, version: int | None, events: bytes) -> StreamRecord:
    kind = f"bank.{type(command).__name__}"
    now = datetime(2030, 1, 1, tzinfo=UTC)
    return StreamRecord(command.aggregate_root_id, version, command.id, "bank.BankAccount", kind, now, events, b"")


OPENED = row(OPEN, 1, encode_stream([AccountOpened(owner="somebody")]))
DEPOSITED = row(DEPOSIT, 2, encode_stream([Deposited(amount=Decimal(5), balance=Decimal(5))]))
REFUSED = row(WITHDRAW, None, encode_refusal(InsufficientFunds("no", balance=Decimal(5), amount=Decimal(9))))
NOT_FOUND = failure(GHOST.id, GHOST.aggregate_root_id, AggregateNotFound("no"))


def sound() -> Facts:
    journal = Journal()
    rows = [OPENED, DEPOSITED, REFUSED]
    journal.note_sent([OPEN, DEPOSIT, WITHDRAW, GHOST])
    for command, stored in zip([OPEN, DEPOSIT, WITHDRAW], rows, strict=True):
        journal.note_answer(command, stored_result(stored))
    journal.note_answer(GHOST, NOT_FOUND)
    return Facts(journal, rows, [OPENED, DEPOSITED, OPENED, DEPOSITED, REFUSED], {0: 7}, {0: 7})


def test_sound_facts_violate_nothing() -> None:
    assert violations(sound()) == []


def answered(command: Command, answer: CommandResult) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        facts.journal.answers[command.id] = [answer]
        return facts

    return change


def success(command: Command, version: int) -> CommandResult:
    return CommandResult(
        status=CommandStatus.SUCCESS,
        command_id=command.id,
        aggregate_root_id=command.aggregate_root_id,
        version=version,
    )


def answered_again(facts: Facts) -> Facts:
    facts.journal.note_answer(OPEN, failure(OPEN.id, ACCOUNT, AggregateNotFound("no")))
    return facts


def never_answered(facts: Facts) -> Facts:
    facts.journal.note_unanswered(GHOST)
    return facts


def without_end(facts: Facts) -> Facts:
    del facts.journal.answers[GHOST.id]
    return facts


WRONG_BALANCE = DEPOSITED._replace(events=encode_stream([Deposited(amount=Decimal(5), balance=Decimal(6))]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (answered_again, "was answered in different ways"),
        (never_answered, "was never answered"),
        (without_end, "has no end"),
        (answered(GHOST, success(GHOST, 1)), "but stored is None"),
        (answered(WITHDRAW, success(WITHDRAW, 3)), "but stored is StreamRecord"),
        (answered(DEPOSIT, success(DEPOSIT, 3)), "with version 3, but stored is version 2"),
        (answered(DEPOSIT, failure(DEPOSIT.id, ACCOUNT, AggregateNotFound("no"))), "but stored is StreamRecord"),
        (answered(GHOST, failure("other", "ghost", AggregateNotFound("no"))), "got the answer of another one"),
        (lambda facts: facts._replace(stored=[OPENED, DEPOSITED]), "bank.InsufficientFunds, but stored is None"),
        (lambda facts: facts._replace(stored=[*facts.stored, REFUSED]), "is stored 2 times"),
        (lambda facts: facts._replace(stored=[OPENED, DEPOSITED._replace(version=3), REFUSED]), "versions [1, 3]"),
        (lambda facts: facts._replace(stored=[OPENED, WRONG_BALANCE, REFUSED]), "has the balance 6 at version 2"),
        (
            lambda facts: facts._replace(stored=[*facts.stored, DEPOSITED._replace(command_id="x", version=3)]),
            "nobody sent it",
        ),
        (lambda facts: facts._replace(published=[OPENED, DEPOSITED]), "version None of account was not published"),
        (lambda facts: facts._replace(published=[DEPOSITED, OPENED, REFUSED]), "version 2 was published after 0"),
        (lambda facts: facts._replace(published=[OPENED, WRONG_BALANCE, REFUSED]), "not published as it is stored"),
        (
            lambda facts: facts._replace(published=[OPENED, DEPOSITED, WRONG_BALANCE, REFUSED]),
            "was published in different ways",
        ),
        (
            lambda facts: facts._replace(published=[*facts.published, REFUSED._replace(command_id="x")]),
            "was published, but is not stored",
        ),
        (lambda facts: facts._replace(committed={0: 6}), "committed up to 6, and ends at 7"),
    ],
)
def test_each_violation_is_found(change: Callable[[Facts], Facts], found: str) -> None:
    assert any(found in violation for violation in violations(change(sound())))


def test_what_lies_in_the_wrong_shard_is_found() -> None:
    shares = even_shares(2)
    right = next(number for number, share in enumerate(shares) if bucket_of(ACCOUNT) in share)
    shards = [[], [OPENED]] if right else [[OPENED], []]
    assert list(misplaced(shards, shares)) == []
    assert list(misplaced(shards[::-1], shares)) == [f"command open of account is stored in shard {1 - right}"]
    assert list(misplaced([[], []], [shares[0], shares[0]])) == ["the shards have not recorded each bucket once"]
