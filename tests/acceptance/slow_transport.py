"""Redis behind a slow network: it widens the gaps between the steps of the write path, for a kill to fall into."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport

LONGEST_DELAY = 0.06


class SlowRedisStreams(RedisStreamsTransport):
    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        _delay()
        sent = super().send(topic, bodies, **options)
        _delay()
        return sent

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        _delay()
        return super().commit(group, topic, commits)

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        super().reply(replies)
        _delay()


def _delay() -> None:
    time.sleep(random.uniform(0.0, LONGEST_DELAY))
