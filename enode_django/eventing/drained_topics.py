"""Find out whether a consumer group has worked off a topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from enode_django.equeue.transport import Transport
from enode_django.eventstore.positions import Position
from enode_django.exceptions import QueueError

logger = logging.getLogger("enode_django.subscribers")


class Goal(NamedTuple):
    """The end of a look at the store. What follows from the streams below ``position``, messages or commands, is in its
    topic below the offsets ``ends``, by queue, if it is there at all."""

    position: Position
    ends: Mapping[int, int]


def is_worked_off(transport: Transport, group: str, topic: str, ends: Mapping[int, int]) -> bool:
    """Return True if the group has nothing left to commit below ``ends``, the ends by queue; False if that is not known
    for the moment. Blocks on the queue.

    A queue that has lost its tail is never committed up to its end, so it is asked whether anything is left.
    """
    try:
        committed = transport.committed(group, topic)
        behind = {queue: at for queue, end in ends.items() if (at := committed.get(queue, 0)) < end}
        left = transport.look(topic, behind)
    except QueueError as error:
        logger.debug("whether %s has worked off %s is not known: %s", group, topic, error)
        return False
    return all(batch.offsets[0] >= ends[batch.queue] for batch in left)
