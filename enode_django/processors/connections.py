"""Count the database connections that the workers of one ``runprocessors`` may open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from enode_django.conf.groups import Conf
from enode_django.eventing.subscribers import Subscriber
from enode_django.processors.control import Role
from enode_django.processors.worker_group import Plan

BESIDE_MAILBOXES = 1
"""Connections of a command worker to each shard beside those of its mailboxes: the pruner's."""


class Share(NamedTuple):
    """A number of processes of a kind, and how many connections to one database each of them may open."""

    processes: int
    each: int

    @property
    def total(self) -> int:
        return self.processes * self.each


def connections_by_database(
    conf: Conf, plans: Iterable[Plan], subscribers: Sequence[Subscriber]
) -> Mapping[str, Sequence[Share]]:
    """Return the shares by alias, one for each role that uses it, without what handlers open elsewhere."""
    shares: dict[str, list[Share]] = {}
    for plan in plans:
        for alias, each in _of_one_worker(conf, plan.role, subscribers).items():
            shares.setdefault(alias, []).append(Share(plan.processes, each))
    return shares


def _of_one_worker(conf: Conf, role: Role, subscribers: Sequence[Subscriber]) -> Mapping[str, int]:
    shards = conf.EVENT_STORE.DATABASES
    if role is Role.COMMAND:
        # A handler may read aggregates of other shards.
        mailboxes = len(shards) * conf.COMMANDS.MAILBOXES + conf.COMMANDS.EVENT_MAILBOXES
        return dict.fromkeys(shards, mailboxes + BESIDE_MAILBOXES)
    each: Counter[str] = Counter()
    for subscriber in subscribers:
        each.update({*shards, subscriber.database})
    return each
