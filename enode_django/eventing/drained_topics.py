"""Find out whether a consumer group has worked off a topic."""

from __future__ import annotations

from collections.abc import Mapping

from enode_django.equeue.transport import Transport


def is_worked_off(transport: Transport, group: str, topic: str, ends: Mapping[int, int]) -> bool:
    """Return True if the group has nothing left to commit below ``ends``, the ends by queue. Blocks on the queue;
    raises `QueueError`.

    A queue that has lost its tail is never committed up to its end, so it is asked whether anything is left.
    """
    committed = transport.committed(group, topic)
    behind = {queue: at for queue, end in ends.items() if (at := committed.get(queue, 0)) < end}
    left = transport.pull(topic, behind, limit=1, wait=0)
    return all(batch.offsets[0] >= ends[batch.queue] for batch in left)
