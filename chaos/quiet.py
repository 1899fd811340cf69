"""Detection of the moment when everything sent has been processed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg

from chaos.names import COMMANDS, EVENTS, GROUP, SUBSCRIBERS
from chaos.services import QUERY_SECONDS
from chaos.world import World
from enode_django.exceptions import QueueError

_POSITION = "SELECT number, pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM enode_django_shard"


class Quiet:
    """A check that the system is quiet.

    A command is committed when its events are published, and an event when the commands that follow from it are sent.
    So if everything present at the beginning of a check is committed, and nothing is added until its end, nothing is in
    transit. Then process managers search for lost commands, and may send some again. They are done when they have
    passed the positions of the moment when nothing was in transit.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._transport = world.services.transport
        self._ends_then: dict[str, Mapping[int, int]] = {}
        self._positions: list[tuple[int, int]] = []
        self.unrest: list[str] = ["nobody has looked yet"]

    def reached(self) -> bool:
        """Check, and return True if the system is quiet. Otherwise ``unrest`` holds the reasons."""
        try:
            before = self._ends()
            self.unrest = [*self._behind(before), *self._running_jobs()]
            if before != self._ends():
                self.unrest.append("messages still come in")
            self.unrest = self.unrest or list(self._looking_for_lost_commands(before))
        except (QueueError, psycopg.Error) as error:
            self.unrest = [f"{type(error).__name__}: {error}"]
        return not self.unrest

    def describe(self) -> str:
        return "; ".join(self.unrest)

    def _ends(self) -> dict[str, Mapping[int, int]]:
        return {topic: self._transport.end_offsets(topic) for topic in (COMMANDS, EVENTS)}

    def _behind(self, ends: Mapping[str, Mapping[int, int]]) -> Iterator[str]:
        for topic, group in [(COMMANDS, GROUP), *((EVENTS, name) for name in SUBSCRIBERS)]:
            committed = self._transport.committed(group, topic)
            left = {queue: end - committed.get(queue, 0) for queue, end in ends[topic].items()}
            if any(count > 0 for count in left.values()):
                yield f"{group} has messages of {topic} left, by queue: {left}"

    def _looking_for_lost_commands(self, ends: dict[str, Mapping[int, int]]) -> Iterator[str]:
        if ends != self._ends_then:
            self._ends_then, self._positions = ends, [self._position_of(url) for url in self._world.services.shards]
        for number, position in self._positions:
            behind = f"shard = {number} AND resent_position < {position}"
            for (name,) in self._world.services.query(
                f"SELECT subscriber FROM enode_django_subscription WHERE {behind}"
            ):
                yield f"{name} looks for lost commands below position {position} of shard {number}"

    @staticmethod
    def _position_of(url: str) -> tuple[int, int]:
        """Return the number of the shard, and a position after everything that it has."""
        with psycopg.connect(url, autocommit=True, connect_timeout=QUERY_SECONDS) as connection:
            row = connection.execute(_POSITION).fetchone()
        assert row is not None, "each shard has recorded its number by now"
        return row[0], row[1]

    def _running_jobs(self) -> Iterator[str]:
        for (kind,) in self._world.services.query(
            "SELECT kind FROM enode_django_job WHERE state = 'running' AND lease_until > now()"
        ):
            yield f"a job {kind} is running"
