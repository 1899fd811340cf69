"""The subscriber that makes snapshots while events arrive, outside the command path.

It has no checkpoints. An aggregate counts as handled up to the version of its snapshot, and up to its head if no
snapshot is due. So a sweep makes only the missing snapshots.
"""

from __future__ import annotations

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.subscribers import Subscriber
from enode_django.repository import policy
from enode_django.serialization.registry import types


class SnapshotSubscriber(Subscriber):
    """Follows the aggregates whose class wants snapshots. It handles no event, so no sender waits for it."""

    name = "enode.snapshots"
    replays = False

    def _enode_follows(self, aggregate_root_type: str) -> bool:
        """Return True if snapshots of this type are on. A type unknown here is left to a process that knows it."""
        cls = types.find(AggregateRoot, aggregate_root_type)
        return cls is not None and policy.is_on(cls)


snapshot_subscriber = SnapshotSubscriber()
