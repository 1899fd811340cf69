"""The order in which rows of scheduled commands are locked."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from enode_django.models import ScheduledCommand
from enode_django.scheduling import rows
from enode_django.scheduling.due import Changes, Due
from tests.outbox.harness import Harness, another_thread, holds_somebody_up, read_rows_as_they_lie
from tests.outbox.test_threads import until
from tests.scheduling.test_scheduling import PAST, key, scheduled


def test_a_relay_and_a_worker_that_wait_for_a_deadline_keep_no_later_one_locked(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they wait for each other in one order: that of the ids, which is neither that of the times nor that in which
    the rows lie in the table."""
    monkeypatch.setattr(rows, "_LIMIT_WAITING", "SET LOCAL lock_timeout = 0")
    changes = {key(name): scheduled(name, Due(PAST - timedelta(days=days))) for days, name in enumerate("cba")}
    for one, deadline in changes.items():
        rows.change("default", {one: deadline})
    ScheduledCommand.objects.filter(name="c").update(aggregate_root_id="moved to the end of the table")
    with another_thread() as elsewhere:
        elsewhere(read_rows_as_they_lie).result(60)
        for wait in (lambda: change_in_transaction(changes), lambda: rows.fire("default")):
            with transaction.atomic():
                ScheduledCommand.objects.select_for_update().get(name="c")
                waiting = elsewhere(wait)
                until(holds_somebody_up)
                assert len(ScheduledCommand.objects.select_for_update(nowait=True)) == 3
                transaction.set_rollback(True)
            waiting.result(60)


def change_in_transaction(changes: Changes) -> None:
    with transaction.atomic():
        rows.change("default", changes)
