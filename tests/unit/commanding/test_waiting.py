from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import permutations
from typing import Any

import pytest
from msgspec import structs

from enode_django import CommandResult, CommandStatus
from enode_django.bus import command_bus as bus_module
from enode_django.bus.addresses import notice_address
from enode_django.bus.notices import Notice
from enode_django.bus.waiting import Wait
from enode_django.equeue.messages import SendResult
from enode_django.exceptions import CommandTimeout, TransportUnavailable
from enode_django.serialization.codec import WireCommand
from tests.races.counting import Add
from tests.unit.commanding.desk import BOTH, SOON, Desk, both

LEDGER, SUMMARIES = BOTH
STEPS: dict[str, Callable[[Desk, WireCommand], Any]] = {
    "answer": lambda desk, wire: desk.answer(wire),
    LEDGER: lambda desk, wire: desk.notify(wire, LEDGER),
    SUMMARIES: lambda desk, wire: desk.notify(wire, SUMMARIES),
}
ORDERS = list(permutations(STEPS))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_answer_and_notices_are_waited_for_in_any_order(desk: Desk, order: Sequence[str]) -> None:
    asked = desk.ask(Add("x"))
    for step in order:
        desk.settle()
        assert not asked.future.done()
        STEPS[step](desk, asked.wire)
    result = asked.future.result(SOON)
    assert (result.status, result.version, result.parked) == (CommandStatus.SUCCESS, 7, ())
    assert desk.remembered == 0


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_asynchronous_form_waits_alike(desk: Desk, order: Sequence[str]) -> None:
    async def execute() -> CommandStatus:
        task = asyncio.ensure_future(desk.bus.aexecute(Add("x"), SOON, both))
        wire = await asyncio.to_thread(desk.received)
        for step in order:
            await asyncio.to_thread(desk.settle)
            assert not task.done()
            STEPS[step](desk, wire)
        return (await task).status

    assert asyncio.run(execute()) is CommandStatus.SUCCESS
    assert desk.remembered == 0


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_what_is_parked_is_told_instead_of_waited_for(desk: Desk, order: Sequence[str]) -> None:
    asked = desk.ask(Add("x"))
    for step in order:
        if step == SUMMARIES:
            desk.notify(asked.wire, SUMMARIES, "KeyError: 'owner'")
        else:
            STEPS[step](desk, asked.wire)
    result = asked.future.result(SOON)
    assert (result.status, result.version, result.parked) == (CommandStatus.SUCCESS, 7, (SUMMARIES,))


def test_who_waits_for_the_answer_only_gets_it_at_once_and_no_notices(desk: Desk) -> None:
    asked = desk.ask(Add("x"), handled=False)
    assert notice_address(asked.wire.reply_to) == ""
    answer = desk.answer(asked.wire)
    assert asked.future.result(SOON) == answer


@pytest.mark.parametrize("status", [CommandStatus.FAILED, CommandStatus.NOTHING_CHANGED])
def test_what_left_no_events_is_answered_at_once(desk: Desk, status: CommandStatus) -> None:
    asked = desk.ask(Add("x"))
    desk.answer(asked.wire, status)
    assert asked.future.result(SOON).status is status


def test_events_that_nobody_follows_are_answered_at_once(desk: Desk) -> None:
    def nobody(event_types: Sequence[str]) -> Mapping[str, str]:
        return {}

    asked = desk._callers.submit(desk.bus.execute, Add("x"), SOON, nobody)
    desk.answer(desk.received())
    assert asked.result(SOON).version == 7


def test_error_in_finding_the_followers_reaches_the_sender(desk: Desk) -> None:
    def broken(event_types: Sequence[str]) -> Mapping[str, str]:
        raise LookupError(f"who follows {event_types[0]}?")

    asked = desk._callers.submit(desk.bus.execute, Add("x"), SOON, broken)
    desk.answer(desk.received())
    with pytest.raises(LookupError, match=r"who follows races\.Added\?"):
        asked.result(SOON)
    desk.settle()  # the receiving thread lives
    assert desk.remembered == 0


def test_who_waits_is_told_at_once_of_a_send_that_was_cancelled() -> None:
    """A send is cancelled if the bus is closed while other sends keep all its threads busy."""
    wait, sending = Wait(), Future[SendResult]()
    sending.add_done_callback(wait.take_sent)
    sending.cancel()
    with pytest.raises(TransportUnavailable, match="closed before it was sent"):
        wait.future.result(0)


# -- running out of time ----------------------------------------------------------------------------------------------

ANSWER = CommandResult(
    status=CommandStatus.SUCCESS, command_id="c", aggregate_root_id="x", version=7, event_types=("races.Added",)
)


def waited(*steps: str | Notice) -> Wait:
    """A wait for both subscribers after these steps."""
    wait = Wait(both)
    for step in steps:
        if step == "answer":
            wait.take_answer(ANSWER)
        else:
            wait.take_notice(step if isinstance(step, Notice) else Notice("c", "x", step))
    return wait


def test_who_waits_is_told_names_although_notices_carry_keys() -> None:
    renamed = {"bank.OldLedger": "bank.Ledger", "bank.Summaries": "bank.Summaries"}
    wait = Wait(lambda event_types: renamed)
    wait.take_answer(ANSWER)
    wait.take_notice(Notice("c", "x", "bank.OldLedger", "ValueError"))
    assert wait.progress()[1] == ("bank.Summaries",)
    wait.take_notice(Notice("c", "x", "bank.Summaries"))
    assert wait.future.result(0).parked == ("bank.Ledger",)


def give_up(wait: Wait) -> CommandResult:
    sent: Future[SendResult] = Future()
    sent.set_result(SendResult("commands", 3, 41))
    return bus_module._give_up(Add("x", id="c"), wait, sent, 0.5)


@pytest.mark.parametrize("steps", [(), (LEDGER,), BOTH])
def test_timeout_before_the_answer_says_that_the_command_was_sent(steps: Sequence[str]) -> None:
    with pytest.raises(CommandTimeout) as caught:
        give_up(waited(*steps))
    text = "Add 'c' was sent (commands/3, offset 41) but not answered within 0.5 s; it may still be executed"
    assert str(caught.value).startswith(text)
    assert (caught.value.executed, caught.value.missing) == (None, ())


@pytest.mark.parametrize(
    ("steps", "missing"), [(("answer",), BOTH), (("answer", LEDGER), (SUMMARIES,)), ((SUMMARIES, "answer"), (LEDGER,))]
)
def test_timeout_after_the_answer_says_which_subscribers_are_missing(
    steps: Sequence[str], missing: Sequence[str]
) -> None:
    with pytest.raises(CommandTimeout) as caught:
        give_up(waited(*steps))
    names = ", ".join(missing)
    text = f"Add 'c' was executed as version 7 of 'x', but within 0.5 s it was not handled by {names}; it will be"
    assert str(caught.value).startswith(text)
    assert (caught.value.executed, caught.value.missing) == (ANSWER, missing)


def test_timeout_names_what_is_parked_beside_what_is_missing() -> None:
    with pytest.raises(CommandTimeout) as caught:
        give_up(waited("answer", Notice("c", "x", LEDGER, "ValueError: 3")))
    assert caught.value.executed.parked == (LEDGER,)
    assert caught.value.missing == (SUMMARIES,)


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_what_comes_while_the_time_runs_out_is_not_lost(order: Sequence[str]) -> None:
    assert give_up(waited(*order)) == ANSWER


def test_execution_that_times_out_is_forgotten_with_its_early_notices(desk: Desk) -> None:
    asked = desk.ask(Add("x"), timeout=0.5)
    desk.notify(asked.wire, LEDGER)
    with pytest.raises(CommandTimeout, match=r"within 0\.5 s"):
        asked.future.result(SOON)
    assert desk.remembered == 0


def test_asynchronous_form_times_out_alike(desk: Desk) -> None:
    async def execute() -> None:
        task = asyncio.ensure_future(desk.bus.aexecute(Add("x"), 0.5, both))
        desk.notify(await asyncio.to_thread(desk.received), LEDGER)
        await task

    with pytest.raises(CommandTimeout, match=r"within 0\.5 s"):
        asyncio.run(execute())
    assert desk.remembered == 0


# -- several, and nobody ----------------------------------------------------------------------------------------------


def test_two_who_wait_for_one_command_both_hear_of_it(desk: Desk) -> None:
    command = Add("x")
    first, second, third = desk.ask(command), desk.ask(command), desk.ask(command, handled=False)
    desk.answer(first.wire)
    assert third.future.result(SOON).version == 7
    desk.notify(first.wire, LEDGER)
    desk.settle()
    assert not first.future.done()
    assert not second.future.done()
    desk.notify(second.wire, SUMMARIES)
    assert first.future.result(SOON) == second.future.result(SOON)
    assert desk.remembered == 0


def test_one_command_for_two_aggregates_is_waited_for_apart(desk: Desk) -> None:
    one, other = desk.ask(Add("one", id="c")), desk.ask(Add("other", id="c"))
    for step in STEPS.values():
        step(desk, other.wire)
    assert other.future.result(SOON).aggregate_root_id == "other"
    desk.settle()
    assert not one.future.done()
    for step in STEPS.values():
        step(desk, one.wire)
    assert one.future.result(SOON).aggregate_root_id == "one"


def test_who_gives_up_first_leaves_the_other_waiting(desk: Desk) -> None:
    command = Add("x")
    patient, hasty = desk.ask(command), desk.ask(command, timeout=0.05)
    with pytest.raises(CommandTimeout):
        hasty.future.result(SOON)
    for step in STEPS.values():
        step(desk, patient.wire)
    assert patient.future.result(SOON).version == 7


def test_command_executed_again_waits_for_answer_and_notices_of_its_own(desk: Desk) -> None:
    command = Add("x")
    for _ in range(2):
        asked = desk.ask(command)
        for step in STEPS.values():
            desk.settle()
            assert not asked.future.done()
            step(desk, asked.wire)
        assert asked.future.result(SOON).version == 7


def test_notices_for_nobody_are_dropped(desk: Desk) -> None:
    asked = desk.ask(Add("x"))
    for n in range(100):
        desk.notify(structs.replace(asked.wire, id=f"other-{n}"), LEDGER)
        desk.notify(structs.replace(asked.wire, aggregate_root_id=f"other-{n}"), LEDGER)
    desk.settle()
    assert desk.remembered == 1
    for step in STEPS.values():
        step(desk, asked.wire)
    asked.future.result(SOON)
    desk.notify(asked.wire, LEDGER)
    desk.settle()
    assert desk.remembered == 0


def test_bytes_that_are_neither_answer_nor_notice_do_no_harm(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    asked = desk.ask(Add("x"))
    desk.transport.reply([(notice_address(asked.wire.reply_to), body) for body in (b"", b"\x01", b"\x02\x90", b"\xc1")])
    for step in STEPS.values():
        step(desk, asked.wire)
    assert asked.future.result(SOON).version == 7
    assert caplog.text.count("an answer cannot be read") == 4


def test_first_answer_counts() -> None:
    wait = waited("answer")
    wait.take_answer(dataclasses.replace(ANSWER, version=8, event_types=()))
    assert wait.progress() == (ANSWER, BOTH)
    assert not wait.future.done()


def test_handled_once_is_handled_for_good() -> None:
    parked, handled = Notice("c", "x", LEDGER, "KeyError"), Notice("c", "x", LEDGER)
    wait = waited(parked, handled, parked, SUMMARIES)
    assert not wait.future.done()
    wait.take_answer(ANSWER)
    assert wait.future.result(0).parked == ()
