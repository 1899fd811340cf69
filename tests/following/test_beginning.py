"""A subscriber that begins now begins before the workers that are started with it handle a command."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from enode_django.conf import conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.registry import subscribers
from enode_django.management.commands.runprocessors import Command
from enode_django.models import Subscription
from enode_django.processors.control import Role
from enode_django.processors.worker_group import Plan
from tests.following.domain import Added, Behaviour, handler_group
from tests.following.harness import Harness


def prepare(*roles: Role) -> None:
    """Do what `runprocessors` does with the databases before it starts workers."""
    plans: Sequence[Plan] = [Plan(role, 1, "events", 1) for role in roles]
    Command(stdout=io.StringIO())._prepare_databases(conf(), plans, MemoryTransport())


@pytest.mark.django_db(transaction=True)
def test_what_a_command_worker_stores_before_the_event_workers_are_up_is_handled(
    harness: Harness, behaviour: Behaviour
) -> None:
    group = handler_group(start="now")
    harness.stored("c", Added(amount=1))
    with subscribers.only(group):
        prepare(Role.COMMAND, Role.EVENT)
    records = harness.stored("c", Added(amount=2), after=1)
    harness.deliver(harness.subscription(group), records)
    assert behaviour.calls == ["c/2/0", "second"]


@pytest.mark.django_db(transaction=True)
def test_command_workers_alone_let_no_subscriber_begin(harness: Harness) -> None:
    with subscribers.only(handler_group(start="now")):
        prepare(Role.COMMAND)
    assert not Subscription.objects.exists()
