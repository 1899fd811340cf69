"""Commands of process managers, with ids derived from the events or refusals that they follow from."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from enode_django import Command, ProcessManager, handles
from enode_django.eventing.process_managers import with_derived_ids
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import DefinitionError
from enode_django.serialization.codec import encode_refusal
from tests.following.domain import (
    Added,
    Behaviour,
    Congratulate,
    Console,
    Kindness,
    Opened,
    TooMuch,
    Unrelated,
    handler_group,
)
from tests.following.harness import Harness


def ids(harness: Harness) -> list[str]:
    return [command.id for command in harness.sent]


def test_an_event_that_comes_again_sends_the_same_commands(harness: Harness) -> None:
    records = harness.stored("c", Opened(owner="ann"))
    kindness = subscribers.instance(Kindness)
    harness.deliver(harness.subscription(kindness), records)
    first = ids(harness)
    assert len(set(first)) == 2
    harness.deliver(harness.subscription(kindness), records)
    assert ids(harness) == first  # events up to the checkpoint are not handled again
    # The state after a crash between sending the commands and saving the checkpoint:
    from enode_django.models import Checkpoint

    Checkpoint.objects.all().delete()
    harness.deliver(harness.subscription(kindness), records)
    assert ids(harness) == first + first


def test_commands_are_sent_before_the_checkpoint_moves(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = harness.subscription(subscribers.instance(Kindness))
    seen: list[int | None] = []
    send = harness._send
    processor = subscription.runner.processor
    monkeypatch.setattr(
        processor,
        "send",
        lambda commands: (seen.append(harness.checkpoint("following.kindness", "c")), send(commands)),
    )
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    assert seen == [None]
    assert harness.checkpoint("following.kindness", "c") == 1


def test_the_ids_do_not_depend_on_the_order_of_the_yields() -> None:
    commands = [
        Congratulate("a", text="x"),
        Congratulate("b", text="x"),
        Console(aggregate_root_id="a", amount=1),
    ]
    expected = None
    for order in itertools.permutations(commands):
        derived = {
            (type(command), command.aggregate_root_id): command.id
            for command in with_derived_ids(order, cause="c/1/0", subscriber="s")
        }
        assert expected is None or derived == expected
        expected = derived
    assert expected is not None
    assert len(set(expected.values())) == 3


def test_ids_differ_by_event_subscriber_type_aggregate_and_occurrence() -> None:
    def derived(cause: str = "c/1/0", subscriber: str = "s", root: str = "a") -> list[str]:
        twice = [Congratulate(root, text="x")] * 2
        return [command.id for command in with_derived_ids(twice, cause=cause, subscriber=subscriber)]

    every = [*derived(), *derived(cause="c/2/0"), *derived(subscriber="t"), *derived(root="b")]
    other = Console(aggregate_root_id="a", amount=1)
    every += [command.id for command in with_derived_ids([other], cause="c/1/0", subscriber="s")]
    assert len(set(every)) == len(every)


def test_parts_that_run_together_do_not_make_the_same_id() -> None:
    command = Congratulate("a", text="x")
    one = next(with_derived_ids([command], cause="c/1", subscriber="2s"))
    other = next(with_derived_ids([command], cause="c/12", subscriber="s"))
    assert one.id != other.id
    assert (one.aggregate_root_id, one.text) == ("a", "x")  # type: ignore[attr-defined]


@pytest.mark.parametrize("yielded", ["no command", None, 5])
def test_what_is_no_command_is_refused(yielded: object) -> None:
    with pytest.raises(DefinitionError, match="which is not a command"):
        list(with_derived_ids([yielded], cause="c", subscriber="s"))


def test_a_single_command_that_is_returned_is_refused_with_advice() -> None:
    command = Congratulate("a", text="x")
    with pytest.raises(DefinitionError, match="let its handler yield it"):
        list(with_derived_ids(command, cause="c", subscriber="s"))


def test_commands_carry_the_conversation_on(harness: Harness) -> None:
    (record,) = harness.stored("c", Opened(owner="ann"))
    harness.deliver(harness.subscription(subscribers.instance(Kindness)), [record])
    assert {(one.correlation_id, one.causation_id) for one in harness.metadata} == {(record.command_id, "c/1/0")}


def test_a_stored_refusal_is_handled_with_its_typed_fields(harness: Harness) -> None:
    refusal = harness.refused("c", TooMuch("no", amount=7))
    subscription = harness.subscription(subscribers.instance(Kindness))
    harness.deliver(subscription, [refusal])
    (command,) = harness.sent
    assert isinstance(command, Console)
    assert (command.amount, command.aggregate_root_id) == (7, "guest-c")
    harness.deliver(subscription, [refusal])
    assert len(harness.sent) == 1


def test_a_refusal_that_is_not_handled_is_passed_over(harness: Harness) -> None:
    harness.deliver(harness.subscription(subscribers.instance(Kindness)), [harness.refused("c", Unrelated("no"))])
    assert harness.sent == []
    assert not harness.window.unfinished


def test_a_new_process_manager_starts_now(harness: Harness, behaviour: Behaviour) -> None:
    old = harness.stored("c", Opened(owner="ann"), Opened(owner="bea"))
    old_refusal = harness.refused("c", TooMuch("no", amount=1))

    class Late(ProcessManager):
        name = "following.late"
        abstract = True

        @handles(Opened)
        def opened(self, event: Opened) -> Iterator[Command]:
            yield Congratulate(event.owner, text="late")

        @handles(TooMuch)
        def refused(self, refusal: TooMuch) -> Iterator[Command]:
            yield Console(aggregate_root_id="late", amount=refusal.amount)

    late = Late()
    subscription = harness.subscription(late)
    subscription.runner.processor.subscribe(harness.store)
    new = harness.stored("c", Opened(owner="cat"), after=2)
    harness.deliver(subscription, [*old, old_refusal, *new, harness.refused("c", TooMuch("no", amount=2))])
    assert [command.aggregate_root_id for command in harness.sent] == ["cat", "late"]
    assert harness.sent[1].amount == 2  # type: ignore[attr-defined]


def test_event_handlers_run_by_priority_and_then_by_name(harness: Harness, behaviour: Behaviour) -> None:
    harness.deliver(harness.subscription(handler_group()), harness.stored("c", Added(amount=1)))
    assert behaviour.calls == ["c/1/0", "second"]


def test_event_handlers_start_now_unless_they_say_otherwise(harness: Harness, behaviour: Behaviour) -> None:
    old = harness.stored("c", Added(amount=1))
    subscription = harness.subscription(handler_group(start="now"))
    subscription.runner.processor.subscribe(harness.store)
    harness.deliver(subscription, old + harness.stored("c", Added(amount=2), after=1))
    assert behaviour.calls == ["c/2/0", "second"]


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_one_that_begins_now_hears_of_each_later_refusal_and_of_no_earlier_whatever_the_clocks_say(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A refusal's time comes from a worker's clock, the subscription's from the clock of its database."""
    monkeypatch.setattr(subscribers.instance(Kindness), "start", "now")

    def refused(amount: int) -> StreamRecord:
        refusal = StreamRecord(
            "c",
            None,
            f"k{amount}",
            "following.Counter",
            "following.Ask",
            datetime.now(UTC) + timedelta(hours=hours),
            encode_refusal(TooMuch("no", amount=amount)),
            b"",
        )
        harness.store.append([refusal])
        return refusal

    earlier = refused(1)
    subscription = harness.subscription(subscribers.instance(Kindness))
    settled(harness)
    subscription.runner.processor.subscribe(harness.store)
    harness.deliver(subscription, [earlier, refused(2)])
    assert [command.amount for command in harness.sent] == [2]  # type: ignore[attr-defined]


def settled(harness: Harness) -> None:
    """Wait until the stored refusal is below the shard's position: open transactions of other sessions delay that."""
    deadline = time.monotonic() + 60
    while not harness.store.stored_before([("k1", "c")], harness.store.position()):
        assert time.monotonic() < deadline, "what was stored does not settle"
        time.sleep(0.01)
