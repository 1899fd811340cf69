"""The topic of events on Redis is trimmed even if no subscriber trims it."""

from __future__ import annotations

import pytest

from enode_django.conf import make_conf
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors import housekeeping
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from tests.equeue.consuming import eventually, texts


def test_command_workers_cut_events_that_nobody_consumes(
    redis_queue: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "TRIM_INTERVAL", 0.05)
    monkeypatch.setattr(redis_queue._trimmer, "_max_length", 200)
    conf = make_conf({"COMMANDS": {"MAILBOXES": 1}})
    redis_queue.create_topic(conf.COMMANDS.TOPIC, 1)
    pipeline = make_pipeline(conf, redis_queue, MemoryEventStore(), owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    eventually(lambda: pipeline.consumer.owned)  # it works although the topic of events does not exist yet
    redis_queue.create_topic(conf.SUBSCRIBERS.TOPIC, 1)
    redis_queue.send(conf.SUBSCRIBERS.TOPIC, {0: texts(*range(1_000))})
    eventually(lambda: redis_queue.queues(conf.SUBSCRIBERS.TOPIC)[0].first >= 500)
    assert redis_queue.queues(conf.SUBSCRIBERS.TOPIC)[0].end == 1_000
    assert pipeline.drain(60)
