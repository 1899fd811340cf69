"""An event whose handler has failed is tried again, at the right times and without help."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import OperationalError, connection

from enode_django import DomainEvent, Projection, Retries, Retry, event_handler, handles
from enode_django.conf import conf
from enode_django.eventing import event_handlers, parking
from enode_django.eventing.code import code_fingerprint
from enode_django.eventing.event_subscription import TRACEBACK_INTERVAL, EventSubscription
from enode_django.eventing.parked_retries import LOOK_AGAIN
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import LONGEST_ASIDE, SHORTEST_PAUSE, RetryPolicy
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import DefinitionError, EventKilledWorker
from enode_django.models import ParkedEvent
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, TooMuch, handler_group
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


@pytest.fixture
def patient() -> Subscriber:
    """A group of handlers with its own ``retry``."""
    group = handler_group()
    group.retry = Retries(attempts=2, first=3.0, most=4.0, passing=[ZeroDivisionError], most_parked=None)
    return group


def handled(behaviour: Behaviour) -> list[str]:
    return [call for call in behaviour.calls if call != "second"]


def let_pass(harness: Harness, subscription: EventSubscription, seconds: float) -> None:
    """Let ``seconds`` pass in steps of one second, and retry due events after each."""
    for _ in range(int(seconds)):
        harness.clock.now += 1.0
        subscription.retry_due()


def make_due(seconds: float = 0.0) -> None:
    """Make all parked events due, and set the time of their first failure back by ``seconds``."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE enode_django_parkedevent SET next_try_at = statement_timestamp(),"
            " first_failed_at = first_failed_at - make_interval(secs => %s)",
            [seconds],
        )


def pause_of(parked: ParkedEvent) -> float:
    assert parked.next_try_at is not None
    return (parked.next_try_at - parked.last_failed_at).total_seconds()


@pytest.mark.parametrize("error", [OperationalError, ConnectionError, TimeoutError])
def test_an_outage_of_another_server_parks_nothing_and_others_go_on(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, error: type[Exception]
) -> None:
    behaviour.error, behaviour.failing["c"] = error, 6
    subscription = harness.subscription(subscriber, attempts=1)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    for version in range(3):
        harness.deliver(subscription, harness.stored("d", Added(amount=1), after=version))
    assert handled(behaviour) == ["d/1/0", "d/2/0", "d/3/0"]
    assert harness.window.unfinished == 1
    let_pass(harness, subscription, 100)
    assert handled(behaviour)[-1] == "c/1/0"
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished


def test_an_outage_that_many_aggregates_meet_is_logged_with_one_traceback_a_minute(
    harness: Harness, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    steps = [(ConnectionError, "a"), (ConnectionError, "b"), (TimeoutError, "c"), (ValueError, "d"), (ValueError, "e")]
    for error, id in steps:
        behaviour.error, behaviour.failing[id] = error, 1
        harness.deliver(subscription, harness.stored(id, Added(amount=1)))
    harness.clock.now += TRACEBACK_INTERVAL
    for error, id in ((ConnectionError, "f"), (Retry, "g")):
        behaviour.error, behaviour.failing[id] = error, 1
        harness.deliver(subscription, harness.stored(id, Added(amount=1)))
    logged = [record for record in caplog.records if record.name == "enode_django.subscribers"]
    assert [bool(record.exc_info) for record in logged] == [True, False, True, True, True, True, False]


def test_an_outage_of_minutes_is_waited_for_where_neither_queue_nor_memory_is_held(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.error, behaviour.failing["c"] = ConnectionError, 1_000
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy(2, 1.0, passing=(ConnectionError,))
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    let_pass(harness, sweep.subscription, 70)
    (parked,) = ParkedEvent.objects.all()
    assert not harness.window.unfinished
    for minutes in (10, 1_000):
        make_due(60.0 * minutes)
        harness.clock.now += LOOK_AGAIN
        sweep.subscription.tick(frozenset({0}))
        parked.refresh_from_db()
        assert abs(pause_of(parked) - LONGEST_ASIDE) < 1.0
    behaviour.failing.clear()
    make_due()
    harness.clock.now += LOOK_AGAIN
    sweep.subscription.tick(frozenset({0}))
    assert handled(behaviour) == ["c/1/0"]
    assert harness.parked(subscriber.name) == []


def test_a_database_error_of_one_handler_does_not_stop_the_others(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is a real one of PostgreSQL, after which the transaction is broken."""
    original = behaviour.handle

    def handle(event: DomainEvent) -> None:
        if event.aggregate_root_id == "c05":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = '1ms'")
                cursor.execute("SET statement_timeout = '1ms'; SELECT pg_sleep(10)")
        original(event)

    monkeypatch.setattr(behaviour, "handle", handle)
    try:
        subscription = harness.subscription(subscriber, attempts=1)
        harness.deliver(subscription, [r for n in range(10) for r in harness.stored(f"c{n:02}", Added(amount=n))])
    finally:
        connection.close()
    assert sorted(set(handled(behaviour))) == [f"c{n:02}/1/0" for n in range(10) if n != 5]
    assert harness.window.unfinished == 1
    assert harness.parked(subscriber.name) == []


def test_what_is_set_aside_is_bounded(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.event_subscription.MOST_ASIDE", 3)
    behaviour.error = ConnectionError
    behaviour.failing.update({f"c{n}": 1_000 for n in range(5)})
    subscription = harness.subscription(subscriber, attempts=1)
    harness.deliver(subscription, [record for n in range(5) for record in harness.stored(f"c{n}", Added(amount=n))])
    assert subscription.held_in(harness.window) == 3
    assert len(harness.parked(subscriber.name)) == 2


def test_all_that_is_pulled_of_one_aggregate_is_set_aside_and_not_parked(
    harness: Harness, behaviour: Behaviour
) -> None:
    pulled = conf().SUBSCRIBERS.PULL_MAX_BATCH
    behaviour.failing["c"] = 1
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", *[Added(amount=1)] * pulled))
    assert (subscription.held_in(harness.window), harness.parked("following.rows")) == (pulled, [])
    let_pass(harness, subscription, 10.0)
    assert len(set(handled(behaviour))) == pulled
    assert subscription.held_in(harness.window) == harness.window.unfinished == 0


def test_a_refusal_that_comes_while_its_aggregate_is_set_aside_is_handled_with_it(
    harness: Harness, behaviour: Behaviour
) -> None:
    behaviour.failing["c"] = 1
    subscription = harness.subscription(subscribers.instance(Kindness))
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    harness.deliver(subscription, [harness.refused("c", TooMuch("no", amount=1))])
    assert subscription.held_in(harness.window) == 2
    let_pass(harness, subscription, 10.0)
    assert [type(command).__name__ for command in harness.sent] == ["Congratulate", "Congratulate", "Console"]
    assert not harness.window.unfinished


def test_new_messages_have_their_turn_while_handlers_wait_in_vain(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_vain(event: DomainEvent) -> None:
        harness.clock.now += 0.6
        raise TimeoutError

    monkeypatch.setattr(behaviour, "handle", wait_in_vain)
    subscription = harness.subscription(subscriber, attempts=1)
    harness.deliver(subscription, [record for n in range(9) for record in harness.stored(f"c{n}", Added(amount=n))])
    harness.clock.now += 100.0
    tried = []
    monkeypatch.setattr(behaviour, "handle", lambda event: tried.append(event) or wait_in_vain(event))
    subscription.retry_due()
    assert len(tried) == 2
    assert subscription.next_retry is not None
    assert subscription.next_retry < harness.clock.now


@pytest.mark.parametrize(("after", "is_parked"), [(30.0, False), (7_200.0, True)])
def test_a_handler_says_when_it_is_to_be_called_again(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, after: float, is_parked: bool
) -> None:
    def handle(event: DomainEvent) -> None:
        raise Retry(after=after)

    monkeypatch.setattr(behaviour, "handle", handle)
    subscription = harness.subscription(handler_group(), attempts=1)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    if is_parked:
        (parked,) = ParkedEvent.objects.all()
        assert abs(pause_of(parked) - after) < 1.0
    else:
        assert subscription.next_retry == harness.clock.now + after
        assert not ParkedEvent.objects.exists()


def test_a_subscriber_has_a_policy_of_its_own(harness: Harness, behaviour: Behaviour, patient: Subscriber) -> None:
    behaviour.failing["c"] = 1_000
    subscription = harness.subscription(patient, attempts=9)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    assert subscription.next_retry == harness.clock.now + 3.0
    harness.clock.now += 3.0
    subscription.retry_due()
    (parked,) = ParkedEvent.objects.all()
    assert (parked.attempts, parked.next_try_at) == (2, None)
    behaviour.error, behaviour.failing["d"] = ZeroDivisionError, 1_000
    harness.deliver(subscription, harness.stored("d", Added(amount=1)))
    let_pass(harness, subscription, 20)
    assert [parked.aggregate_root_id for parked in harness.parked(patient.name)] == ["c"]


def test_what_is_parked_is_tried_again_after_growing_pauses(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy(1, 1.0)
    began = time.monotonic()
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1), Added(amount=2)))
    (parked,) = ParkedEvent.objects.all()
    assert abs(pause_of(parked) - 60.0) < 1.0
    since = 0.0
    for seconds, expected in ((100.0, 100.0), (900.0, 1_000.0), (1_000_000.0, 86_400.0)):
        make_due(seconds)
        since += seconds
        harness.clock.now += LOOK_AGAIN
        sweep.subscription.tick(frozenset({0}))
        parked.refresh_from_db()
        assert -1.0 < pause_of(parked) - expected < 1.0 + time.monotonic() - began
    behaviour.failing.clear()
    harness.clock.now += LOOK_AGAIN
    sweep.subscription.tick(frozenset({0}))
    assert handled(behaviour) == [], "it is not due"
    make_due()
    harness.clock.now += LOOK_AGAIN
    sweep.subscription.tick(frozenset({0}))
    assert handled(behaviour) == ["c/1/0", "c/2/0"]
    assert harness.parked(subscriber.name) == []


def test_what_is_parked_is_tried_again_by_other_code_once(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = handler_group()
    subscriber.retry = Retries(attempts=1, most_parked=None)
    behaviour.failing["c"] = 1_000
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy.of(subscriber.retry, 1, 1.0, unknown_delays=(), passing=())
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    for _ in range(3):
        harness.clock.now += LOOK_AGAIN
        sweep.subscription.tick(frozenset({0}))
    assert harness.parked(subscriber.name)[0].attempts == 1
    for attempts in (2, 3):
        deploy(subscriber, attempts)
        for _ in range(3):
            harness.clock.now += LOOK_AGAIN
            sweep.subscription.tick(frozenset({0}))
        assert harness.parked(subscriber.name)[0].attempts == attempts
    behaviour.failing.clear()
    deploy(subscriber, 4)
    harness.clock.now += LOOK_AGAIN
    sweep.subscription.tick(frozenset({0}))
    assert handled(behaviour) == ["c/1/0"]
    code_fingerprint.cache_clear()


def deploy(subscriber: Subscriber, number: int) -> None:
    """Change the fingerprint of the subscriber's code."""
    before = code_fingerprint(subscriber)
    handler: Any = subscriber.handlers[0]  # type: ignore[attr-defined]
    subscriber.handlers[0] = handler._replace(priority=10 + number)  # type: ignore[attr-defined]
    code_fingerprint.cache_clear()
    assert code_fingerprint(subscriber) != before


def test_a_pause_of_0_seconds_does_not_call_a_handler_without_end() -> None:
    policy = RetryPolicy(1, 1.0, most_parked=0.0)
    assert policy.next_try(Retry(after=0), 1) == (SHORTEST_PAUSE, False)
    assert policy.parked_pause(Retry(after=0), 0.0) == SHORTEST_PAUSE
    assert policy.next_try(ValueError(), 1) == (SHORTEST_PAUSE, True)


def test_what_ends_its_workers_is_tried_again_by_other_code_only() -> None:
    policy = RetryPolicy(1, 1.0)
    assert policy.next_try(EventKilledWorker(), 1) == (None, True)


def test_catching_up_with_a_long_parked_aggregate_lets_others_in_between(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.unparking.PORTION", 2)
    behaviour.failing["c"] = 1
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy(1, 1.0)
    harness.deliver(sweep.subscription, harness.stored("c", *(Added(amount=1) for _ in range(9))))
    original = behaviour.handle

    def slowly(event: DomainEvent) -> None:
        original(event)
        harness.clock.now += 1.0

    monkeypatch.setattr(behaviour, "handle", slowly)
    make_due()
    counts = []
    harness.clock.now += LOOK_AGAIN
    while harness.parked(subscriber.name):
        sweep.subscription.tick(frozenset({0}))
        counts.append(len(handled(behaviour)))
    assert counts[:2] == [2, 4]
    assert handled(behaviour) == [f"c/{n}/0" for n in range(1, 10)]


class Death(BaseException):
    """Stands for the end of a worker."""


@pytest.fixture
def deadly(harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A worker that dies at the parked aggregate ``c`` when it tries it again."""

    def die(event: DomainEvent) -> None:
        raise Death

    behaviour.failing["c"] = 1
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy(1, 1.0)
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    monkeypatch.setattr(behaviour, "handle", die)
    harness.clock.now += LOOK_AGAIN
    return sweep


def test_a_worker_that_dies_at_what_is_parked_does_not_meet_it_at_once_again(
    harness: Harness, subscriber: Subscriber, deadly: Sweep
) -> None:
    make_due(1_000.0)
    with pytest.raises(Death):
        deadly.subscription.tick(frozenset({0}))
    assert parking.claim_due("default", subscriber.name, code_fingerprint(subscriber)) is None
    (parked,) = ParkedEvent.objects.all()
    assert pause_of(parked) >= 1_000.0


def test_a_worker_that_dies_at_what_other_code_has_parked_does_not_meet_it_again(
    subscriber: Subscriber, deadly: Sweep
) -> None:
    tag, _ = code_fingerprint(subscriber).split(":")
    ParkedEvent.objects.update(next_try_at=None, fingerprint=f"{tag}:earlier")
    with pytest.raises(Death):
        deadly.subscription.tick(frozenset({0}))
    assert parking.claim_due("default", subscriber.name, code_fingerprint(subscriber)) is None
    (parked,) = ParkedEvent.objects.all()
    assert parked.next_try_at is None


def test_code_that_cannot_be_compared_does_not_count_as_other_code(subscriber: Subscriber, deadly: Sweep) -> None:
    """In a deployment with two versions of Python, the workers would try in turns, without end."""
    ParkedEvent.objects.update(next_try_at=None, fingerprint="of another Python:earlier")
    assert parking.claim_due("default", subscriber.name, code_fingerprint(subscriber)) is None


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"attempts": 2.0}, {"first": -1.0}, {"most": None}, {"passing": ["x"]}, {"passing": OSError}],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"Retries\(\) got"):
        Retries(**options)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(DefinitionError, match="give it Retries"):

        class Broken(Projection):
            models = ()
            retry = 5  # type: ignore[assignment]

            @handles(Added)
            def added(self, event: Added) -> None: ...

    with pytest.raises(DefinitionError, match="give it Retries"):
        event_handler(Added, name="x", retry=Retry())  # type: ignore[arg-type]


def test_handlers_of_a_group_share_one_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_handlers, "_groups", {})
    retry = Retries(attempts=7)

    @event_handler(Added, name="a", group="following.shared")
    def one(event: Added) -> None: ...

    @event_handler(Added, name="b", group="following.shared", retry=retry)
    def two(event: Added) -> None: ...

    (group,) = event_handlers.handler_groups()
    assert group.retry == retry
    assert group.is_at_one
    event_handler(Added, name="c", group="following.shared", retry=Retries(attempts=8))(one)
    assert not group.is_at_one
