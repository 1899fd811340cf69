"""The settings of a consumer: its topics, mode, order and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from pathlib import Path

from enode_django.equeue.consumer.broadcasting import BroadcastQueues
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.consumer.topic_consumer import (
    Beginner,
    MakeTask,
    OwnedQueues,
    Starts,
    TopicConsumer,
    task_of_message,
    task_of_retry,
)
from enode_django.equeue.consumer.worklist import Worklist
from enode_django.equeue.messages import Start
from enode_django.equeue.offsets_file import OffsetsFile
from enode_django.equeue.retrying import retry_topic
from enode_django.equeue.transport import LONG_POLL, Transport


class Mode(Enum):
    """Consumers of a group share the queues, or each gets all of them."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class Order(Enum):
    """Messages of a queue are handled one after the other, or several at once."""

    LINEAR = "linear"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a consumer. ``max_held``: the most unfinished messages of a topic; each queue has an equal share, and
    is not pulled while its share is unfinished. ``pull_limit``: the most messages of each queue per pull. In seconds:
    ``pull_wait``, how long a pull waits for messages (`Consumer.stop` and a change of the queues end it);
    ``pull_pause``, how long a pull is delayed while more than three quarters of ``max_held`` are unfinished, and after
    a pull that found nothing while a queue had its share unfinished; ``lease``, after which a silent consumer loses
    its queues; ``commit_interval``, between commits."""

    max_held: int = 3_000
    pull_limit: int = 200
    pull_wait: float = LONG_POLL
    pull_pause: float = 0.05
    lease: float = 15.0
    commit_interval: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be above 0, got {getattr(self, field.name)!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A consumer's view of the topics. ``owner`` is its own name, ``delays`` the number of its retry delays."""

    group: str
    owner: str
    topics: Sequence[str]
    mode: Mode
    start: Start | datetime
    limits: Limits
    delays: int
    directory: str | Path | None

    def __post_init__(self) -> None:
        if not self.topics or isinstance(self.topics, str):
            raise ValueError(f"topics must be a list of names, got {self.topics!r}")
        if self.mode is Mode.BROADCASTING and self.directory is None:
            raise ValueError("who broadcasts keeps the offsets in a directory of its own; give it one")
        if isinstance(self.start, datetime) and self.start.tzinfo is None:
            raise ValueError(f"a time to start from needs a time zone, got {self.start!r}")

    def consumers(self, transport: Transport, worklist: Worklist) -> dict[str, TopicConsumer]:
        """Return the consumers by topic; with `Mode.CLUSTERING` also that of the group's retries."""
        limits = self.limits
        beginner: Beginner | None = None
        topics: dict[str, tuple[Start | datetime, int, MakeTask]]
        topics = dict.fromkeys(self.topics, (self.start, limits.max_held, task_of_message))
        if self.mode is Mode.CLUSTERING:
            beginner = Beginner(self.group, self.owner, limits.lease)
            max_held = limits.max_held * max(1, self.delays)  # each delay has its queues, where most messages only wait
            topics[retry_topic(self.group)] = (Start.FIRST, max_held, task_of_retry)
        consumers: dict[str, TopicConsumer] = {}
        for topic, (start, max_held, make_task) in topics.items():
            starts = Starts(transport, topic, start, beginner)
            consumers[topic] = TopicConsumer(
                topic,
                self._queues(transport, topic, starts),
                worklist,
                starts=starts,
                make_task=make_task,
                max_held=max_held,
                limit=limits.pull_limit,
                pause=limits.pull_pause,
            )
        return consumers

    def _queues(self, transport: Transport, topic: str, starts: Starts) -> OwnedQueues:
        if self.mode is Mode.BROADCASTING:
            file = OffsetsFile(Path(self.directory or "."), self.group, topic)
            return BroadcastQueues(transport, topic=topic, file=file, start=starts, long_poll=self.limits.pull_wait)
        return QueueConsumer(
            transport,
            group=self.group,
            topic=topic,
            owner=self.owner,
            lease=self.limits.lease,
            max_held=self.limits.max_held,
            start=starts,
            long_poll=self.limits.pull_wait,
        )
