"""A replay hands everything stored to the subscribers that take part in replays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django import Command, ProcessManager, handles
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.eventing.replay import replay
from enode_django.eventing.subscribers import Subscriber
from enode_django.runtime import make_processor
from tests.following.domain import Added, Behaviour, Congratulate, CounterRows, Entries, Kindness, Opened
from tests.following.harness import Harness


def replayed(harness: Harness, *chosen: Subscriber) -> dict[str, int]:
    return replay(chosen, harness.store, lambda one: make_processor(one, harness.store, harness._send))


def test_projections_are_replayed_from_their_checkpoints_on(harness: Harness, behaviour: Behaviour) -> None:
    chosen = [subscribers.instance(CounterRows), subscribers.instance(Entries)]
    harness.stored("c", Opened(owner="ann"), Added(amount=2))
    harness.stored("d", Added(amount=3))
    assert replayed(harness, *chosen) == {"following.rows": 2, "following.entries": 2}
    assert harness.rows() == {"c": ("ann", 2, 2), "d": ("", 3, 1)}
    behaviour.calls.clear()
    harness.stored("c", Added(amount=5), after=2)
    assert replayed(harness, *chosen) == {"following.rows": 1, "following.entries": 1}
    assert behaviour.calls == ["c/3/0", "c/3/0"]


def test_process_managers_and_event_handlers_are_left_out(harness: Harness, behaviour: Behaviour) -> None:
    group = EventHandlerGroup("following.mails")
    group.add(EventHandler(Opened, "following.mail", 1, behaviour.handle, "beginning"))
    harness.stored("c", Opened(owner="ann"))
    assert replayed(harness, subscribers.instance(Kindness), group) == {}
    assert (harness.sent, behaviour.calls) == ([], [])


def test_those_that_say_so_take_part(harness: Harness, behaviour: Behaviour) -> None:
    class Willing(ProcessManager):
        name = "following.willing"
        abstract = True
        start = "beginning"
        replays = True

        @handles(Opened)
        def opened(self, event: Opened) -> Iterator[Command]:
            yield Congratulate(event.owner, text="again")

    group = EventHandlerGroup("following.cache")
    group.add(EventHandler(Opened, "following.cache", 1, behaviour.handle, "beginning", replays=True))
    harness.stored("c", Opened(owner="ann"))
    replayed(harness, Willing(), group)
    assert [command.aggregate_root_id for command in harness.sent] == ["ann"]
    assert behaviour.calls == ["c/1/0"]


def test_what_a_handler_raises_is_raised(harness: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1
    harness.stored("c", Added(amount=1))
    with pytest.raises(RuntimeError, match="told to fail"):
        replayed(harness, subscribers.instance(Entries))


def test_a_group_that_differs_takes_no_part_since_its_handlers_share_checkpoints(
    harness: Harness, behaviour: Behaviour
) -> None:
    group = EventHandlerGroup("following.mixed")
    group.add(EventHandler(Opened, "following.cache", 1, behaviour.handle, "beginning", replays=True))
    group.add(EventHandler(Opened, "following.mail", 2, behaviour.handle, "beginning"))
    assert not group.is_at_one
    records = harness.stored("c", Opened(owner="ann"))
    assert replayed(harness, group) == {}
    harness.deliver(harness.subscription(group), records)
    assert behaviour.calls == ["c/1/0", "c/1/0"]
