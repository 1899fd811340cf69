"""A worker's pipeline in this process, on topics of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import connection
from django.test import override_settings

from enode_django.conf import conf
from enode_django.models import DeadLetter
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.runtime import make_store, make_transport
from sample_project.layers import merged

SECONDS = 120.0


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)
    return value


class Processors:
    """Pipelines that handle commands while a test sends them; `restart` replaces one as a new worker would."""

    def __init__(self) -> None:
        self.transport = make_transport()
        self.transport.create_topic(conf().SUBSCRIBERS.TOPIC, conf().QUEUE.QUEUES_PER_TOPIC)
        self.queues = self.transport.create_topic(conf().COMMANDS.TOPIC, conf().QUEUE.QUEUES_PER_TOPIC)
        self._pipeline: Pipeline | None = None
        self.statistics = Statistics()

    def start(self) -> None:
        current, self.statistics = conf(), Statistics()
        self._pipeline = make_pipeline(
            current,
            make_transport(),
            make_store(),
            owner=f"test-{uuid.uuid4().hex}",
            markers=[[0] for _ in range(current.COMMANDS.MAILBOXES)],
            statistics=self.statistics,
        )
        self._pipeline.start()

    def stop(self) -> bool:
        pipeline, self._pipeline = self._pipeline, None
        assert pipeline is not None
        drained = pipeline.drain(SECONDS)
        pipeline.close(SECONDS)
        return drained

    def restart(self) -> None:
        assert self.stop()
        self.start()

    def messages(self, topic: str) -> list[bytes]:
        pulled = self.transport.pull(topic, dict.fromkeys(range(self.queues), 0), limit=10_000, wait=0)
        return [body for batch in pulled for body in batch.bodies]

    def published(self) -> list[bytes]:
        return self.messages(conf().SUBSCRIBERS.TOPIC)

    def dead_letters(self) -> list[DeadLetter]:
        return list(DeadLetter.objects.filter(topic=conf().COMMANDS.TOPIC))


@contextlib.contextmanager
def processors(**settings: Any) -> Iterator[Processors]:
    from django.conf import settings as current

    name = uuid.uuid4().hex
    topics = {
        "COMMANDS": {"TOPIC": f"commands-{name}"},
        "SUBSCRIBERS": {"TOPIC": f"events-{name}"},
        "QUEUE": {"QUEUES_PER_TOPIC": 4},
    }
    with override_settings(ENODE=merged(current.ENODE, topics, settings)):
        running = Processors()
        running.start()
        try:
            yield running
        finally:
            if running._pipeline is not None:
                running.stop()
            end_other_sessions()
            running.transport.close()


def other_session() -> psycopg.Connection[Any]:
    """Return a session in the tests' database, without Django."""
    parameters = {**connection.get_connection_params()}
    for name in ("context", "cursor_factory"):
        parameters.pop(name, None)
    return psycopg.connect(**parameters, autocommit=True)


def end_other_sessions() -> None:
    """Threads that are gone may have left sessions behind, and the tests' database must be dropped in the end."""
    with other_session() as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)",
            [connection.connection.info.backend_pid if connection.connection is not None else 0],
        )
