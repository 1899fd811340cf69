"""Build the threads of a worker from the settings."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from enode_django.bus.interception import handlers_in_use
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.intake import Intake
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.publisher import EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.commanding.shared_state_writer import SharedStateWriter
from enode_django.concurrency.backoff import CountedWaits, until_it_works
from enode_django.concurrency.in_flight import InFlightMarker
from enode_django.concurrency.lookups import Lookups
from enode_django.conf.groups import Conf
from enode_django.equeue.clocks import boot_time
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore
from enode_django.processors.housekeeping import Housekeeper, queue_keepers, store_duties, trimming
from enode_django.processors.mail import FIRST_LOOKUP, LOOKUP_BYTES, offsets_of
from enode_django.processors.mailbox_threads import CommandMailboxThread, EventMailboxThread, PublisherThread
from enode_django.processors.mailboxes import Mailboxes
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.puller import Puller, ShardBacklogs
from enode_django.processors.statistics import Statistics
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.writing_behind import WriteBehind
from enode_django.runtime import make_dead_letters, make_producer, make_retries, make_snapshots, make_states
from enode_django.telemetry.tracing import current_tracing

HELD_PER_UNFINISHED = 5
"""The messages of a window, in multiples of ``MAX_UNFINISHED``, at which a queue with a stuck message pauses."""


def make_pipeline(
    conf: Conf,
    transport: Transport,
    store: EventStore,
    *,
    owner: str,
    markers: Sequence[InFlightMarker],
    statistics: Statistics,
) -> Pipeline:
    """Return the pipeline of a command worker, not started. ``markers`` has one for each command mailbox."""
    commands, tracing, meter, persist = conf.COMMANDS, current_tracing(), BatchMeter(statistics), CountedWaits()
    progress, shards = threading.Event(), len(store.shards)
    states = make_states()
    write_behind = WriteBehind(states) if states is not None else None
    consumer = make_consumer(conf, transport, owner)
    router = MailboxRouter(commands.MAILBOXES, commands.EVENT_MAILBOXES, shards, store.place_of)
    mailboxes = Mailboxes(router, shards, commands.MAX_UNFINISHED_BYTES)
    remembered = RememberedAnswers(
        commands.REMEMBERED_ANSWERS,
        lambda window: until_it_works(lambda: consumer.receipts(window)),
        earlier=consumer,
    )
    publisher = EventPublisher(
        transport,
        make_producer(transport),
        remembered,
        event_topic=conf.SUBSCRIBERS.TOPIC,
        command_topic=commands.TOPIC,
        persist=until_it_works,
        commit=lambda: until_it_works(consumer.commit_some),
    )
    processors = make_processors(
        conf, store, router, write_behind, persist=persist, max_record=publisher.max_record, markers=markers
    )
    letters = make_dead_letters(store)

    def published(count: int) -> None:
        statistics.count_published(count)
        progress.set()

    pipeline = Pipeline(
        consumer,
        mailboxes,
        publisher,
        puller=Puller(
            consumer,
            Intake(
                router,
                remembered,
                delays=conf.WORKERS.UNKNOWN_TYPE_DELAYS,
                max_deaths=conf.WORKERS.MAX_ABNORMAL_ENDS,
            ),
            remembered,
            mailboxes,
            processors,
            store,
            backlogs=ShardBacklogs(shards, commands.MAX_UNFINISHED),
            meter=meter,
            max_batch=commands.PULL_MAX_BATCH,
            progress=progress,
        ),
        commands=[
            CommandMailboxThread(
                number,
                mailboxes,
                processor,
                store.shards[router.shard_of(number)],
                Lookups(first=FIRST_LOOKUP, most=max(1, commands.PULL_MAX_BATCH), most_bytes=LOOKUP_BYTES),
            )
            for number, processor in enumerate(processors)
        ],
        events=[
            EventMailboxThread(
                number,
                mailboxes,
                Committer(store, persist=persist, clock=boot_time),
                letters[router.shard_beside(number)],
                max_batch=commands.COPY_MAX_BATCH,
                max_bytes=commands.COPY_MAX_BYTES,
                meter=meter,
                tracing=tracing,
            )
            for number in range(router.event_mailboxes)
        ],
        publishing=PublisherThread(
            mailboxes, publisher, max_batch=2 * commands.COPY_MAX_BATCH, tracing=tracing, published=published
        ),
        keepers=queue_keepers(conf, [consumer], trim_more=trimming(consumer, transport, conf.SUBSCRIBERS.TOPIC)),
        pruner=Housekeeper(store_duties(conf, consumer, store, letters)),
        states=write_behind,
        markers=markers,
        progress=progress,
    )
    statistics.gauges["cached_aggregates"] = lambda: sum(one.cached for one in processors)
    statistics.gauges["unfinished"] = lambda: consumer.unfinished
    statistics.gauges["waiting_for_help"] = lambda: persist.waiting
    statistics.mailboxes = lambda: offsets_of([*mailboxes.commands, *mailboxes.events])
    return pipeline


def make_consumer(conf: Conf, transport: Transport, owner: str) -> QueueConsumer:
    commands = conf.COMMANDS
    return QueueConsumer(
        transport,
        group=commands.CONSUMER_GROUP,
        topic=commands.TOPIC,
        owner=owner,
        lease=conf.WORKERS.LEASE,
        max_held=HELD_PER_UNFINISHED * commands.MAX_UNFINISHED,
        heavy=max(1, commands.MAX_UNFINISHED_BYTES // commands.MAX_UNFINISHED),
        keep_receipts=commands.REMEMBERED_ANSWERS,
        long_poll=conf.WORKERS.LONG_POLL,
    )


def make_processors(
    conf: Conf,
    store: EventStore,
    router: MailboxRouter,
    states: WriteBehind | None,
    *,
    persist: CountedWaits,
    max_record: int,
    markers: Sequence[InFlightMarker],
) -> list[CommandProcessor]:
    """Return a processor for each marker. The mailboxes share the limits of the cache."""
    cache, suspects, mailboxes = conf.AGGREGATE_CACHE, threading.Lock(), router.command_mailboxes
    # An unfinished command must be remembered to catch its copies: it has no row and no remembered answer yet.
    recent = max(2 * conf.COMMANDS.MAX_UNFINISHED, conf.COMMANDS.RECENT_COMMANDS // mailboxes)
    return [
        CommandProcessor(
            AggregateLoader(store, make_snapshots(store), states),
            handlers_in_use(),
            persist=persist,
            max_aggregates=max(1, cache.MAX_AGGREGATES // mailboxes),
            max_recent=recent,
            max_cached_bytes=max(1, cache.MAX_BYTES // mailboxes),
            max_bytes=min(conf.COMMANDS.EVENTS_MAX_BYTES, max_record),
            note=marker,
            suspects=suspects,
            keeper=SharedStateWriter(states, interval=cache.WRITE_INTERVAL) if states else None,
            retries=make_retries(conf),
            shard=store.shards[router.shard_of(number)],
            claim_deadline=conf.COMMANDS.CLAIM_DEADLINE,
        )
        for number, marker in enumerate(markers)
    ]
