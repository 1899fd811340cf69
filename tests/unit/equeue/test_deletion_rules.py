"""What hinders the deletion of topics and queues."""

from __future__ import annotations

import pytest

from enode_django.equeue.messages import QueueState
from enode_django.equeue.refusals import check_deletable_queue, check_unused
from enode_django.exceptions import QueueError

FOREIGN = 1_700_000_000_000
"""The offset that an entry of a foreign writer seems to have in a stream of Redis: its time."""


def test_a_queue_that_has_only_entries_of_foreign_writers_may_be_deleted() -> None:
    check_deletable_queue("orders", 0, QueueState(FOREIGN, 5, False, False), {}, force=False)
    check_unused("orders", {}, {0: (FOREIGN, 5), 1: (2, 2)})


def test_messages_that_no_group_counts_for_hinder_whatever_other_queues_hold() -> None:
    with pytest.raises(QueueError, match="no group consumes its 3 messages"):
        check_unused("orders", {}, {0: (FOREIGN, 5), 1: (2, 5)})
