"""Commands that a process manager has sent and the queue has lost are sent again."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest
from psycopg.errors import DeadlockDetected

from enode_django import AggregateRoot, Command, ProcessManager, handles
from enode_django.equeue.messages import Commit
from enode_django.eventing.code import code_fingerprint, handlers_fingerprint
from enode_django.eventing.effects import EffectProcessor
from enode_django.eventing.registry import subscribers
from enode_django.eventing.resender import Resender
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.unparking import skip_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.dead_letters import DeadLetter, PostgresDeadLetters, key_of
from enode_django.models import Subscription
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.registry import types
from tests.following.domain import Behaviour, Console, Kindness, Opened, Thanked, TooMuch
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep


class Resending(Sweep):
    """A sweeping subscription of `Kindness`, and a resender for a topic of one queue."""

    def __init__(self, harness: Harness, subscriber: ProcessManager | None = None) -> None:
        super().__init__(harness, subscriber or subscribers.instance(Kindness))
        self.transport.create_topic("commands", 1)
        self.commands = self.transport.acquire("processors", "commands", 0, "me", 1e6)
        self.subscription.policy = RetryPolicy(1, 1.0)
        self.letters = PostgresDeadLetters()
        self.resender = self.new_resender()
        self.resender.tick()  # begins here

    def new_resender(self) -> Resender:
        processor = self.subscription.runner.processor
        assert isinstance(processor, EffectProcessor)
        return Resender(
            processor,
            self.harness.store,
            self.transport,
            topic="commands",
            group="processors",
            interval=30.0,
            dead_letters=[self.letters],
            clock=self.harness.clock,
        )

    def handled(self) -> list[Command]:
        """Handle and sweep everything stored. Return the commands that were sent."""
        self.harness.clock.now += 30.0
        self.run(10)
        return self.taken()

    def resent(self, resender: Resender | None = None, rounds: int = 10) -> list[Command]:
        self.harness.clock.now += 30.0
        for _ in range(rounds):
            (resender or self.resender).tick()
            self.harness.clock.now += 0.5
        return self.taken()

    def taken(self) -> list[Command]:
        taken, self.harness.sent[:] = list(self.harness.sent), []
        return taken


class Kinder(Kindness):
    """`Kindness` in a later release."""

    abstract = True
    name = "following.kindness"

    @handles
    def opened(self, event: Opened) -> Iterator[Command]:
        yield Console(f"guest-{event.owner}", amount=1)


def let_happen(harness: Harness, commands: Sequence[Command]) -> None:
    now = datetime.now(UTC)
    for command in commands:
        version = harness.store.heads([command.aggregate_root_id]).get(command.aggregate_root_id, 0) + 1
        events = encode_stream([Thanked()])
        harness.store.append(
            [
                StreamRecord(
                    command.aggregate_root_id, version, command.id, "following.Guest", "following.Do", now, events, b""
                )
            ]
        )


def test_a_command_without_an_effect_is_sent_again_with_the_same_id(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    first, second = resending.handled()
    let_happen(harness, [first])
    assert resending.resent() == [second]
    assert [command.id for command in [second]] == [second.id]
    assert resending.resent() == []


def test_nothing_is_sent_again_that_has_had_an_effect(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    harness.refused("c", TooMuch("no", amount=3))
    sent = resending.handled()
    assert len(sent) == 3
    let_happen(harness, sent)
    assert resending.resent() == []


def test_what_is_a_dead_letter_is_sent_again_by_nobody_else(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    first, second = resending.handled()
    key = key_of(first.id, first.aggregate_root_id, b"")
    letter = DeadLetter(key, first.id, first.aggregate_root_id, "x", "commands", 0, 7, "ValueError", "no", b"", False)
    resending.letters.keep([letter])
    assert resending.resent() == [second]


def test_what_follows_from_a_refusal_is_sent_again_too(harness: Harness) -> None:
    resending = Resending(harness)
    harness.refused("c", TooMuch("no", amount=3))
    sent = resending.handled()
    assert len(sent) == 1
    assert resending.resent() == sent


def test_it_waits_until_the_commands_are_worked_off(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    resending.transport.send("commands", {0: [b"one of them"]})
    assert resending.resent() == []
    resending.transport.commit("processors", "commands", {0: Commit(resending.commands.epoch, 1)})
    assert resending.resent() == sent


def test_commands_of_a_queue_that_has_lost_its_tail_are_sent_again(harness: Harness) -> None:
    """Such a queue is never committed up to the end that it once had."""
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    resending.transport.send("commands", {0: [b"one of them"]})
    assert resending.resent(rounds=1) == []
    resending.transport._queues["commands"][0].trim(1)
    assert resending.resent() == sent


def test_what_was_handled_after_a_look_began_is_left_to_the_next_one(harness: Harness) -> None:
    """Its commands may still be in the queue when those from before are worked off."""
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    resending.transport.send("commands", {0: [b"one of the first"]})
    assert resending.resent(rounds=1) == []
    harness.stored("d", Opened(owner="bea"))
    later = resending.handled()
    resending.transport.send("commands", {0: [b"one of the later ones"]})
    resending.transport.commit("processors", "commands", {0: Commit(resending.commands.epoch, 1)})
    assert resending.resent() == sent
    resending.transport.commit("processors", "commands", {0: Commit(resending.commands.epoch, 2)})
    assert resending.resent() == later


def test_it_waits_until_the_queue_says_where_it_ends(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    resending.transport.delete_topic("commands", force=True)
    assert resending.resent() == []
    resending.transport.create_topic("commands", 1)
    assert resending.resent() == sent


def test_a_worker_that_dies_before_its_first_look_has_begun_nevertheless(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    assert resending.resent(resending.new_resender()) == sent


def test_what_was_skipped_is_not_sent(harness: Harness, behaviour: Behaviour) -> None:
    resending = Resending(harness)
    behaviour.failing["c"] = 1
    harness.stored("c", Opened(owner="ann"))
    assert resending.handled() == []
    assert skip_parked(resending.subscription, "c") is None
    assert resending.resent() == []


def test_what_is_parked_is_not_sent(harness: Harness, behaviour: Behaviour) -> None:
    resending = Resending(harness)
    behaviour.failing["c"] = 1
    harness.stored("c", Opened(owner="ann"))
    assert resending.handled() == []
    assert resending.resent() == []


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, CancelledError])
def test_a_handler_that_fails_the_second_time_stops_nothing(
    harness: Harness, behaviour: Behaviour, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    harness.stored("d", Opened(owner="bea"))
    sent = resending.handled()
    behaviour.failing["c"], behaviour.error = 1, error
    assert resending.resent() == sent[2:]
    (said,) = caplog.messages
    assert said == (
        "following.kindness looks for lost commands, and fails at version 1 of c, which it handled before: "
        f"{error.__name__}: told to fail at c/1/0; commands that followed from it are not looked for"
    )


def test_a_handler_that_fails_for_the_moment_is_called_again(harness: Harness, behaviour: Behaviour) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    behaviour.failing["c"], behaviour.error = 1, DeadlockDetected
    with pytest.raises(DeadlockDetected):
        resending.resent()
    behaviour.failing.clear()
    assert resending.resent() == sent


def test_more_rows_than_one_look_takes_are_looked_at_in_parts(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.resender.ROWS_AT_ONCE", 2)
    resending = Resending(harness)
    for number in range(5):
        harness.stored(f"c{number}", Opened(owner=f"o{number}"))
    sent = resending.handled()
    assert len(sent) == 10
    assert sorted(command.id for command in resending.resent()) == sorted(command.id for command in sent)


def test_the_next_worker_goes_on_where_the_last_one_was(harness: Harness) -> None:
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    assert resending.resent() == sent
    harness.stored("d", Opened(owner="bea"))
    later = resending.handled()
    assert resending.resent(resending.new_resender()) == later


def test_what_was_handled_before_the_first_look_is_left_alone(harness: Harness) -> None:
    """This happens after an upgrade: otherwise the resender would check years of events."""
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.stored("c", Opened(owner="ann"))
    sweep.run()
    harness.sent.clear()
    assert Resending(harness).resent() == []


def test_what_was_stored_before_other_code_began_is_left_alone(harness: Harness) -> None:
    """Its commands were those of the earlier code: the others would come in addition."""
    earlier = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    let_happen(harness, earlier.handled())
    later = Resending(harness, Kinder())
    assert later.resent() == []
    harness.stored("d", Opened(owner="bea"))
    sent = later.handled()
    assert [command.aggregate_root_id for command in sent] == ["guest-bea"]
    assert later.resent(later.new_resender()) == sent


def test_the_code_of_a_subscription_without_its_fingerprint_counts_as_the_same(harness: Harness) -> None:
    """This happens after an upgrade."""
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()
    Subscription.objects.update(fingerprint=None)
    assert resending.resent(resending.new_resender()) == sent


def test_a_process_that_knows_more_types_has_the_same_code(harness: Harness) -> None:
    """Hosts may have other apps installed."""
    resending = Resending(harness)
    harness.stored("c", Opened(owner="ann"))
    sent = resending.handled()

    class OfAnotherApp(AggregateRoot):
        type_name = "resending.OfAnotherApp"

    assert types.name_of(OfAnotherApp)
    for fingerprint in (code_fingerprint, handlers_fingerprint):
        fingerprint.cache_clear()
    assert resending.resent(resending.new_resender()) == sent
