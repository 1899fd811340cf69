"""Measure how far each subscriber is behind the store.

There are two sources, and neither is complete. Published streams that are not handled are messages above the
consume offset of the subscriber's group. Other streams, such as those from before a new projection, are found only by
the sweep (`eventing.sweep`): while that is late, every stream stored above its position may be unhandled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from enode_django.bus.messages import decode_published
from enode_django.conf import conf
from enode_django.databases import execute
from enode_django.equeue.administration import GroupInfo, list_groups
from enode_django.equeue.transport import Transport
from enode_django.eventing import checkpoints
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.registry import subscriber_databases
from enode_django.eventing.subscribers import Subscriber, follows, key_of
from enode_django.eventing.unowned import unowned_in
from enode_django.eventstore import rows as store_rows
from enode_django.eventstore import statements
from enode_django.eventstore.amounts import Amount, Amounts, stored_since
from enode_django.eventstore.positions import Position
from enode_django.exceptions import MalformedMessage, QueueError, StoreUnavailable
from enode_django.monitoring.parts import Finding, Health, Problem, bad, degraded
from enode_django.runtime import make_transport_if_any, running_subscribers

LATE = 60.0
VERY_LATE = 600.0
SWEEPS_MISSED = 3
MANY = 1_000_000
"""Streams. One worker sweeps more of them in hours; a rebuild reads them in parallel."""


class Lag(NamedTuple):
    """The lag of a subscriber, in event streams. Streams that wait in the queue count for every subscriber,
    those in the store only if the subscriber handles events of their type of aggregate.

    ``versions``: streams that are stored and perhaps not handled: the larger one of ``waiting`` and ``uncompared``.
    ``seconds``: the age of the oldest. Both are None if neither source is known. ``waiting``: streams in the queue,
    None if it has no such group. ``uncompared``: streams that a late sweep has not reached, None if it is not late.
    ``parked`` counts aggregates. ``build``: that of the tables in use. ``has_begun``: event workers have run the
    subscriber."""

    subscriber: str
    versions: int | None
    seconds: float | None
    waiting: int | None
    uncompared: int | None
    parked: int
    build: int
    has_begun: bool


class _Waiting(NamedTuple):
    messages: int
    oldest: datetime | None


def ask_lags() -> Finding:
    """Return the lags as a part of the status."""
    with closing(make_transport_if_any()) as transport:
        rows, problems = lags_of(transport)
    projections = {one.name for one in running_subscribers() if isinstance(one, BaseProjection)}
    return Finding(rows, [*problems, *_problems(rows, projections), *_unowned()])


def lags_of(transport: Transport) -> tuple[list[Lag], list[Problem]]:
    """Return the lags, and a problem for each shard and for the queue if it is away. The lags lack their streams.
    Blocks, on the calling thread's connections. Raises the errors of the subscribers' databases."""
    problems: list[Problem] = []
    try:
        waiting = {name: _waiting(transport, group) for name, group in event_groups(transport).items()}
    except QueueError as error:
        problems.append(degraded(f"what waits in the queue is not known: {error}"))
        waiting = {}
    shards, away = _shard_numbers()
    problems += (degraded(f"what shard {alias} holds is not known: it is away") for alias in away)
    return _lags(waiting, shards), problems


def subscriber_lags(transport: Transport) -> list[Lag]:
    """Return the lags of the subscribers that event workers run. The lags lack the streams of shards that are away.
    Blocks, on the calling thread's connections. Raises the errors of the queue and of the subscribers' databases.

    For example::

        for lag in subscriber_lags(transport):
            print(lag.subscriber, lag.versions, lag.seconds)
    """
    shards, _ = _shard_numbers()
    return _lags({name: _waiting(transport, group) for name, group in event_groups(transport).items()}, shards)


def event_groups(transport: Transport) -> Mapping[str, GroupInfo]:
    """Return the groups of the events topic, by name. Empty until the topic exists."""
    topic = conf().SUBSCRIBERS.TOPIC
    if topic not in transport.topics():
        return {}
    return {info.group: info for info in list_groups(transport, [topic])}


def _waiting(transport: Transport, info: GroupInfo) -> _Waiting:
    """Count the messages above the consume offset that exist. The backlog alone would be too high: a queue that lost
    messages at its end is never committed up to there."""
    starts = {share.queue: share.end - share.backlog for share in info.shares if share.backlog}
    ends = {share.queue: share.end for share in info.shares}
    messages, made = 0, []
    for batch in transport.look(info.topic, starts) if starts else ():
        if batch.offsets[0] < ends[batch.queue]:
            messages += ends[batch.queue] - batch.offsets[0]
            made += _made_at(bytes(batch.bodies[0]))
    return _Waiting(messages, min(made, default=None))


def _made_at(body: bytes) -> list[datetime]:
    try:
        return [decode_published(body).record.created_at]
    except MalformedMessage:  # from a newer version, or not a stream
        return []


class _Facts(NamedTuple):
    """Facts about all subscribers, by key; ``shards`` are numbers by alias. ``amounts`` is a cache, since most
    subscribers have reached the same position."""

    now: datetime
    shards: Mapping[str, int]
    waiting: Mapping[str, _Waiting]
    begun: Mapping[str, int]
    parked: Mapping[str, int]
    generations: Mapping[str, int]
    amounts: dict[tuple[str, Position], Amounts]


def _lags(waiting: Mapping[str, _Waiting], shards: Mapping[str, int]) -> list[Lag]:
    subscribers = running_subscribers()
    aliases = {one.database for one in subscribers}
    begun, parked, generations = (_by_subscriber(aliases, each) for each in (_BEGUN, _PARKED, _GENERATIONS))
    facts = _Facts(datetime.now(UTC), shards, waiting, begun, parked, generations, {})
    return [_lag(one, facts) for one in subscribers]


def _lag(subscriber: Subscriber, facts: _Facts) -> Lag:
    key = key_of(subscriber)
    swept = _swept(subscriber.database, key, facts.shards)
    concerns = partial(follows, subscriber)
    behind = [_since(facts.amounts, alias, position).of(concerns) for alias, position in swept.items()]
    overdue = [amount for amount in behind if _is_overdue(amount, facts.now)]
    uncompared = sum(amount.streams for amount in overdue) if overdue else None
    messages, oldest = facts.waiting.get(key, (None, None))
    known = [number for number in (messages, uncompared) if number is not None]
    made = [at for at in (oldest, *(amount.oldest for amount in overdue)) if at is not None]
    seconds = max(0.0, (facts.now - min(made)).total_seconds()) if made else 0.0
    return Lag(
        subscriber=subscriber.name,
        versions=max(known, default=None),
        seconds=seconds if known else None,
        waiting=messages,
        uncompared=uncompared,
        parked=facts.parked.get(key, 0),
        build=facts.generations.get(key, 0),
        has_begun=key in facts.begun,
    )


def _shard_numbers() -> tuple[Mapping[str, int], Sequence[str]]:
    """Return the recorded numbers of the shards by alias, and the aliases of shards that are away. Records none."""
    numbers: dict[str, int] = {}
    away = []
    for alias in conf().EVENT_STORE.tables_in:
        try:
            with store_rows.connected(alias) as connection:
                for number, *_ in store_rows.execute(connection, statements.CLAIM, ()):
                    numbers[alias] = number
        except StoreUnavailable:
            away.append(alias)
    return numbers, away


def _swept(alias: str, subscriber: str, shards: Mapping[str, int]) -> Mapping[str, Position]:
    """Return the position up to which the subscriber's checkpoints were compared with each shard, by alias."""
    found = {name: checkpoints.subscription(alias, subscriber, number) for name, number in shards.items()}
    return {name: one.swept_position for name, one in found.items() if one is not None}


def _since(known: dict[tuple[str, Position], Amounts], alias: str, position: Position) -> Amounts:
    if (alias, position) not in known:
        known[alias, position] = stored_since(alias, position)
    return known[alias, position]


def _is_overdue(amount: Amount, now: datetime) -> bool:
    """Return True if the sweep should have reached the oldest stream by now. Newer streams are left to the next sweep;
    most are handled long before."""
    return amount.oldest is not None and now - amount.oldest > timedelta(
        seconds=SWEEPS_MISSED * conf().SUBSCRIBERS.SWEEP_INTERVAL
    )


_BEGUN = "SELECT subscriber, count(*) FROM enode_django_subscription GROUP BY subscriber"
_PARKED = "SELECT subscriber, count(DISTINCT aggregate_root_id) FROM enode_django_parkedevent GROUP BY subscriber"
_GENERATIONS = "SELECT subscriber, generation FROM enode_django_projectiongeneration"


def _by_subscriber(aliases: Collection[str], statement: str) -> Mapping[str, int]:
    return {name: number for alias in aliases for name, number in execute(alias, statement, None).fetchall()}


def _unowned() -> Iterator[Problem]:
    for one in unowned_in(subscriber_databases()):
        if one.kept_since is None:
            yield degraded(f"no code owns the stored subscription {one.key}:{one.ways_out}")
        else:
            yield Problem(Health.OK, f"no code owns the stored subscription {one.key}, which is kept")


def _problems(lags: Sequence[Lag], projections: Collection[str]) -> Iterator[Problem]:
    if never := [lag.subscriber for lag in lags if not lag.has_begun]:
        yield degraded(f"never run so far: {', '.join(never)}; run manage.py runprocessors")
    for lag in lags:
        if lag.uncompared is not None and not lag.waiting:
            sooner = lag.uncompared > MANY and lag.subscriber in projections
            hint = f"; manage.py rebuildprojection {lag.subscriber} is done sooner" if sooner else ""
            yield degraded(f"{lag.subscriber} has {lag.uncompared:,} streams to compare with the store{hint}")
        elif lag.seconds is not None and lag.seconds > LATE:
            say = bad if lag.seconds > VERY_LATE else degraded
            yield say(f"{lag.subscriber} is {lag.seconds:,.0f} s behind, with {lag.versions:,} streams")
