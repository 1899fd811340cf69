"""The outbox's way into the queue."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.equeue.producer import Producer
from enode_django.exceptions import MalformedMessage, MessageError, error_text
from enode_django.outbox.rows import Row
from enode_django.serialization.codec import decode_command


class QueueSender:
    """A sender of the outbox's relay that sends to a topic. A command of an unknown type is sent: workers of newer code
    may know it."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    def refusal(self, row: Row) -> str:
        most = self._producer.max_message
        if len(row.body) > most:
            return f"MessageTooLarge: a message of {len(row.body)} bytes is above the {most} that the queue takes"
        try:
            wire = decode_command(row.body)
            if (wire.aggregate_root_id, wire.id) != (row.aggregate_root_id, row.command_id):
                raise MalformedMessage(f"the row is not that of the command {wire.id!r} for {wire.aggregate_root_id!r}")
        except MessageError as error:
            return f"{type(error).__name__}: {error_text(error)}"
        return ""

    def send(self, waiting: Sequence[Row]) -> None:
        self._producer.send_batch(self._topic, [(row.aggregate_root_id, row.body) for row in waiting])
