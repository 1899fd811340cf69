"""Queues are added and hidden on a real queue. An answer without a row does not change."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enode_django import CommandStatus, execute_command, try_command
from enode_django.conf import conf
from enode_django.models import EventStream
from tests.equeue.brokers import RunningBroker
from tests.integration.notebook import Count, CreateNote
from tests.integration.running import Processors, processors

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["redis", "broker"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processors]:
    if request.param == "redis":
        request.getfixturevalue("redis_url")
        with processors() as running:
            yield running
        return
    with RunningBroker(tmp_path / "broker") as broker:
        queue: dict[str, Any] = {
            "BACKEND": "enode_django.equeue.transports.broker.BrokerTransport",
            "LOCATION": broker.location,
        }
        with processors(QUEUE=queue) as running:
            yield running


def test_a_copy_of_a_failed_command_fails_as_before_though_its_aggregate_has_another_queue(running: Processors) -> None:
    topic = conf().COMMANDS.TOPIC
    commands = [Count(str(uuid.uuid4())) for _ in range(8)]
    failed = [try_command(command, timeout=240) for command in commands]
    assert {answer.status for answer in failed} == {CommandStatus.FAILED}
    assert running.transport.add_queues(topic, 7) == 7
    for command in commands:  # from now on they would succeed
        execute_command(CreateNote(command.aggregate_root_id), timeout=240)
    assert [try_command(command, timeout=240) for command in commands] == failed
    running.transport.show(topic, 0, to_producers=False)
    assert [try_command(command, timeout=240) for command in commands] == failed
    running.restart()
    running.transport.show(topic, 0, to_producers=True)
    assert [try_command(command, timeout=240) for command in commands] == failed
    assert not EventStream.objects.filter(command_id__in=[command.id for command in commands]).exists()
