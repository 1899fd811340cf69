"""Event pipelines in a process of the tests. Their subscribers note the events that they get."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from enode_django.concurrency.backoff import Persist
from enode_django.conf import make_conf
from enode_django.conf.groups import Conf
from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.messages import Membership
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors.event_pipeline import EventPipeline
from enode_django.processors.statistics import Statistics

SOON = 60.0
QUEUES = 2
CONF = make_conf({"WORKERS": {"LEASE": 1.2, "COMMIT_INTERVAL": 0.02}})


class DividedByHand(MemoryTransport):
    """Gives each member the queues that a test says, and deletes nothing: what one subscriber has committed before
    another has begun would be gone for that one."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, frozenset[int]] = {}

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        return Membership(1, self.given.get(member, frozenset()), ())

    def trim(self, topic: str) -> None:
        pass


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.002)


class Notebook:
    """A follower that notes its messages. It sets aside those that begin with ``bad``, and calls ``before`` ahead of
    each batch."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None
        self.bodies: list[bytes] = []
        self.aside: list[tuple[PulledMessages, int]] = []
        self.ticks: list[frozenset[int]] = []
        self.handled = 0
        self.parked = 0
        self.next_retry: float | None = None
        self.deaths: dict[int, Mapping[int, int]] = {}

    def held_in(self, window: OffsetWindow) -> int:
        return sum(messages.window is window for messages, _ in self.aside)

    def suspect(self, queue: int, deaths: Mapping[int, int]) -> None:
        self.deaths[queue] = deaths

    def handle(self, pulled: Sequence[PulledMessages]) -> None:
        self.before()
        for messages in pulled:
            for offset, body in zip(messages.offsets, messages.bodies, strict=True):
                self.bodies.append(body)
                if body.startswith(b"bad"):
                    self.aside.append((messages, offset))
                else:
                    messages.window.finish(offset)
                    self.handled += 1

    def retry_due(self) -> None:
        if self.next_retry is not None and self.next_retry <= time.monotonic():
            self.next_retry = None
            for messages, offset in self.aside:
                messages.window.finish(offset)
            self.aside.clear()
            self.parked += 1

    def tick(self, owned: frozenset[int]) -> None:
        self.ticks.append(owned)


class Worker:
    """An event pipeline with a notebook for each of two subscribers, ``a`` and ``b``."""

    def __init__(
        self, transport: DividedByHand, owner: str = "w", store: EventStore | None = None, conf: Conf = CONF
    ) -> None:
        self.persist: Persist
        self.hand_over: dict[str, Callable[[], None]] = {}
        self.transport, self.owner = transport, owner
        self.notebooks = {name: Notebook() for name in "ab"}
        self.statistics = Statistics()
        with subscribers.only(EventHandlerGroup("a"), EventHandlerGroup("b")):
            self.pipeline = EventPipeline(
                conf,
                transport,
                store or MemoryEventStore(),
                owner=owner,
                statistics=self.statistics,
                make_subscription=self._notebook,
            )

    def _notebook(
        self,
        subscriber: Subscriber,
        transport: Transport,
        store: EventStore,
        *,
        persist: Persist,
        in_flight: InFlight,
        hand_over: Callable[[], None],
    ) -> Notebook:
        self.persist = persist
        self.hand_over[subscriber.name] = hand_over
        return self.notebooks[subscriber.name]

    @property
    def owned(self) -> frozenset[int]:
        """The queues that both subscribers own now."""
        return frozenset.intersection(*(consumer.owned for consumer in self.pipeline._consumers))

    def give(self, *queues: int) -> None:
        self.transport.given[self.owner] = frozenset(queues)

    def start(self, *queues: int) -> None:
        self.give(*queues)
        self.pipeline.start()

    def wait_bodies(self, name: str, *bodies: bytes) -> None:
        wait_for(lambda: sorted(self.notebooks[name].bodies) == sorted(bodies), f"{name} gets {bodies!r}")


def prepared(transport: DividedByHand) -> DividedByHand:
    transport.create_topic(CONF.SUBSCRIBERS.TOPIC, QUEUES)
    return transport


@contextlib.contextmanager
def running(worker: Worker, *queues: int) -> Iterator[Worker]:
    worker.start(*queues)
    yield worker
    worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)


def send(transport: Transport, *bodies: bytes, queue: int = 0) -> None:
    transport.send(CONF.SUBSCRIBERS.TOPIC, {queue: bodies})


def committed(transport: Transport, name: str) -> int:
    return sum(transport.committed(name, CONF.SUBSCRIBERS.TOPIC).values())
