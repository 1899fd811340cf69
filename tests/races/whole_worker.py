"""A worker from the queue to the answers, in one thread. A test can end it at any step, and let another one follow."""

from __future__ import annotations

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.decisions import Finished
from enode_django.commanding.intake import Intake
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.publisher import EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.concurrency.backoff import once
from enode_django.equeue.clocks import boot_time
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore
from enode_django.repository.loading import AggregateLoader
from tests.races.counting import handlers

GROUP, COMMANDS = "g", "commands"


class WholeWorker:
    """All parts of a worker, for one queue. It remembers up to ``remember`` answers, and ``max_recent`` commands."""

    def __init__(
        self,
        transport: Transport,
        store: EventStore,
        owner: str,
        *,
        remember: int = 10,
        max_recent: int = 10,
        max_bytes: int = 10_000,
    ) -> None:
        self.transport = transport
        self.consumer = QueueConsumer(
            transport, group=GROUP, topic=COMMANDS, owner=owner, lease=60, keep_receipts=remember
        )
        remembered = self.remembered = RememberedAnswers(remember, self.consumer.receipts, earlier=self.consumer)
        self.intake = Intake(MailboxRouter(1, 1), remembered, delays=())
        self.processor = CommandProcessor(
            AggregateLoader(store),
            handlers,
            persist=once,
            max_aggregates=10,
            max_recent=max_recent,
            max_bytes=max_bytes,
        )
        self.committer = Committer(store, persist=once, clock=boot_time)
        self.publisher = EventPublisher(
            transport,
            Producer(transport, queues=1),
            remembered,
            event_topic="events",
            command_topic=COMMANDS,
            persist=once,
            commit=self.consumer.commit,
        )

    def take(self, *gone: str, queue: int = 0) -> WholeWorker:
        """Acquire the queue, after burying the owners ``gone``."""
        for owner in gone:
            self.transport.bury(GROUP, COMMANDS, owner)
        self.consumer.assign([queue])
        assert len(self.consumer.acquire_missing()) == 1
        return self

    def handle(self) -> tuple[list[Finished], int]:
        """Handle the messages of the queue. Return the outcomes for the publisher, and the number of commands that went
        to the command mailbox."""
        finished: list[Finished] = []
        handled = 0
        pulled = self.consumer.pull(100, 0)
        if pulled:
            self.remembered.heed_route()
        for window, offsets, bodies in pulled:
            received = self.intake.receive(window, offsets, bodies)
            finished += received.finished
            stored, left = self.processor.take_stored(received.commands)
            handled += len(left)
            entries = [*stored, *self.processor.handle(left)]
            while entries:
                committed = self.committer.commit(entries)
                finished += committed.finished
                self.processor.finish(committed.released)
                entries = self.processor.recover(*committed.recoveries)
        return finished, handled

    def work(self) -> int:
        """Handle and publish the messages of the queue. Return the number of commands that went to the command
        mailbox."""
        finished, handled = self.handle()
        self.publisher.publish(finished)
        self.consumer.commit()
        return handled
