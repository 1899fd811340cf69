"""Ask the queue for its server and for the backlog of its consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

from enode_django.conf import conf
from enode_django.equeue.administration import GroupInfo, list_groups
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.monitoring.parts import Finding, Problem, bad, degraded
from enode_django.runtime import has_queue, make_transport, make_transport_if_any


class QueueServer(NamedTuple):
    """``kind`` is the driver's name, or ``Immediate`` without a queue. ``address`` lacks user and password. One answer
    took ``milliseconds``. ``figures`` are the broker's own, empty for other drivers."""

    kind: str
    address: str
    topics: int
    milliseconds: float
    figures: Mapping[str, int | str]


class GroupBacklog(NamedTuple):
    """The messages of a topic that a consumer group has not committed, and its number of members. A ``paused`` group
    consumes nothing until an operator resumes it."""

    topic: str
    group: str
    backlog: int
    members: int
    paused: bool


def ask_queue() -> Finding:
    if not has_queue():
        return Finding((QueueServer("Immediate", "", 0, 0.0, {}),))
    with closing(make_transport()) as transport:
        began = time.monotonic()
        topics = transport.topics()
        milliseconds = round((time.monotonic() - began) * 1000, 1)
        figures = transport.status() if isinstance(transport, BrokerTransport) else {}
    current = conf()
    kind = current.QUEUE.BACKEND.rpartition(".")[2].removesuffix("Transport")
    row = QueueServer(kind, shown_location(current.QUEUE.LOCATION), len(topics), milliseconds, figures)
    return Finding((row,), list(_of_the_disk(figures)))


def _of_the_disk(figures: Mapping[str, int | str]) -> Iterator[Problem]:
    if damaged := figures.get("damaged_batches", 0):
        yield bad(f"the broker found {damaged} damaged batches of messages in its files")
    if figures.get("uses_reserve"):  # not bad: the probe of a web server that only reads must not fail
        free = figures["free_bytes"]
        yield degraded(
            f"the broker refuses what is sent, since its disk is full ({free:,} bytes are free); make room on it"
        )


def ask_backlog() -> Finding:
    with closing(make_transport_if_any()) as transport:
        infos = list_groups(transport, _ours(transport.topics()))
    rows = [GroupBacklog(one.topic, one.group, one.backlog, len(one.members), one.paused) for one in infos]
    return Finding(sorted(rows, key=lambda row: -row.backlog), list(_left_alone(infos)))


def _ours(topics: Sequence[str]) -> list[str]:
    return [topic for topic in (conf().COMMANDS.TOPIC, conf().SUBSCRIBERS.TOPIC) if topic in topics]


def _left_alone(infos: Sequence[GroupInfo]) -> Iterator[Problem]:
    for one in infos:
        if one.paused:
            yield degraded(
                f"group {one.group!r} of topic {one.topic!r} is paused; manage.py enode queue resume {one.group}"
            )
        if one.backlog and not one.members and one.counts:
            yield bad(
                f"{one.backlog:,} messages of topic {one.topic!r} wait for group {one.group!r}, which has no members"
            )


def shown_location(location: str) -> str:
    """Return a location without its user, password and query.

    >>> shown_location("redis://:secret@cache:6379/0?password=secret"), shown_location("tcp://127.0.0.1:7625")
    ('redis://cache:6379/0', 'tcp://127.0.0.1:7625')
    """
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
