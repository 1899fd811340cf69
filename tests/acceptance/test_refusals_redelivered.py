from __future__ import annotations

from decimal import Decimal

import pytest

from enode_django import Command, CommandResult, CommandStatus
from enode_django.eventing.messages import decode_published
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount, ReserveWithdrawal, StartTransfer, Withdraw
from tests.acceptance.stack import COMMANDS, EVENTS, Stack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


def execute(stack: Stack, command: Command) -> CommandResult:
    answer = stack.client.execute(command)
    assert answer is not None
    return answer


def publish_again(stack: Stack, records: list[StreamRecord]) -> None:
    for queue, bodies in bodies_by_queue(stack).items():
        again = [body for body in bodies if decode_published(body).record in records]
        stack.transport.send(EVENTS, {queue: again})


def bodies_by_queue(stack: Stack) -> dict[int, list[bytes]]:
    ends = stack.transport.end_offsets(EVENTS)
    pulled = stack.transport.pull(EVENTS, dict.fromkeys(ends, 0), limit=sum(ends.values()), wait=0)
    return {batch.queue: list(batch.bodies) for batch in pulled}


def test_a_transfer_stays_cancelled_though_its_refusal_comes_again_when_the_account_is_full(stack: Stack) -> None:
    stack.start_ready(1, role="all")
    source, target, transfer = new_id(), new_id(), new_id()
    for account in (source, target):
        execute(stack, OpenAccount(aggregate_root_id=account, owner="somebody")).raise_for_status()
    amount = Decimal(100)
    start = StartTransfer(aggregate_root_id=transfer, source=source, target=target, amount=amount)
    execute(stack, start).raise_for_status()
    stack.wait_followed()
    (refusal,) = [record for record in stack.stored() if record.version is None]
    assert (refusal.aggregate_root_id, refusal.command_type) == (source, "bank.ReserveWithdrawal")
    execute(stack, Deposit(aggregate_root_id=source, amount=Decimal(1000))).raise_for_status()
    stack.wait_followed()
    before = stack.stored()

    again = ReserveWithdrawal(aggregate_root_id=source, transfer=transfer, amount=amount, id=refusal.command_id)
    for forget in (False, True):
        if forget:  # so that the process manager handles all of it once more, and sends the same commands
            stack.execute("DELETE FROM enode_django_handledrefusal")
            stack.execute("DELETE FROM enode_django_checkpoint WHERE subscriber = 'bank.transfers'")
        sent = sum(stack.transport.end_offsets(COMMANDS).values())
        publish_again(stack, [refusal])
        answer = execute(stack, again)
        assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "bank.InsufficientFunds")
        publish_again(stack, before)
        stack.wait_followed()
        assert stack.stored() == before, "nothing is stored that was not"
        more = sum(stack.transport.end_offsets(COMMANDS).values()) - sent
        assert more > 3 if forget else more == 1, "what is remembered brings about no command"
    figures = stack.check_read_side()
    assert (figures["transfers cancelled"], figures.get("transfers completed")) == (1, None)
    assert execute(stack, Withdraw(aggregate_root_id=source, amount=Decimal(1000))).value == 0, "nothing is reserved"
    stack.check(loaded=False)
