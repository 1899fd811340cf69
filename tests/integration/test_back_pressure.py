"""A worker that cannot finish commands stops pulling, and goes on when it can; offsets move on a timer."""

from __future__ import annotations

import time
import uuid

import pytest
from django.db import connection, transaction

from enode_django import execute_command, send_commands
from enode_django.conf import conf
from enode_django.eventstore.statements import TABLE
from tests.integration.notebook import Count, CreateNote
from tests.integration.running import processors, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

BOUND, PULLED, QUEUES, SENT = 20, 5, 4, 120


def test_a_worker_stops_pulling_above_its_bound_of_unfinished_commands(redis_url: str) -> None:
    note = str(uuid.uuid4())
    with processors(
        COMMANDS={"MAX_UNFINISHED": BOUND, "PULL_MAX_BATCH": PULLED}, WORKERS={"COMMIT_INTERVAL": 0.05}
    ) as running:
        execute_command(CreateNote(note), timeout=240)
        pipeline = running._pipeline
        assert pipeline is not None
        most = 0
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {TABLE} IN EXCLUSIVE MODE")  # nobody can store anything
            send_commands(Count(note) for _ in range(SENT))
            wait_for(lambda: pipeline.consumer.unfinished >= BOUND)
            deadline = time.monotonic() + 0.6  # a few turns of the puller
            while time.monotonic() < deadline:
                most = max(most, pipeline.consumer.unfinished)
                time.sleep(0.01)
        assert BOUND <= most < BOUND + PULLED * QUEUES
        assert execute_command(Count(note), timeout=240).version == SENT + 2


def test_offsets_are_committed_on_a_timer_while_the_worker_runs(redis_url: str) -> None:
    note = str(uuid.uuid4())
    with processors(WORKERS={"COMMIT_INTERVAL": 0.05}) as running:
        execute_command(CreateNote(note), timeout=240)
        group, topic = conf().COMMANDS.CONSUMER_GROUP, conf().COMMANDS.TOPIC
        ends = {queue: end for queue, end in running.transport.end_offsets(topic).items() if end}
        assert sum(ends.values()) == 1
        wait_for(lambda: ends.items() <= running.transport.committed(group, topic).items())
