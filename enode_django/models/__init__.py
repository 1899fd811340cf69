"""The tables of the app. Drivers of the event store use SQL; these classes are for reading and for migrations."""

from __future__ import annotations

from enode_django.models.following import (
    Checkpoint,
    GenerationCheck,
    HandledRefusal,
    ParkedEvent,
    ProcessState,
    ProjectionGeneration,
    ReadModel,
    Rebuild,
    Subscription,
)
from enode_django.models.operating import Job, JobState, OperatorAction, ProcessorReport, Subscriber, Topic
from enode_django.models.outbox import OutboxCommand, ScheduledCommand
from enode_django.models.store import (
    DeadLetter,
    EventCorrection,
    EventStream,
    ReceivedCommand,
    Shard,
    Snapshot,
    StoreGeneration,
    UniqueValue,
)

__all__ = [
    "Checkpoint",
    "DeadLetter",
    "EventCorrection",
    "EventStream",
    "GenerationCheck",
    "HandledRefusal",
    "Job",
    "JobState",
    "OperatorAction",
    "OutboxCommand",
    "ParkedEvent",
    "ProcessState",
    "ProcessorReport",
    "ProjectionGeneration",
    "ReadModel",
    "Rebuild",
    "ReceivedCommand",
    "ScheduledCommand",
    "Shard",
    "Snapshot",
    "StoreGeneration",
    "Subscriber",
    "Subscription",
    "Topic",
    "UniqueValue",
]
