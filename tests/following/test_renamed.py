"""Renamed subscribers go on where they stood: everything stored and sent carries the oldest name."""

from __future__ import annotations

import io
import re
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, models

from enode_django import event_handler
from enode_django.checks import subscribers as subscriber_checks
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing import event_handlers
from enode_django.eventing import subscribers as declaring
from enode_django.eventing.code import rows_fingerprint
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber, key_of
from enode_django.eventing.unowned import Unowned
from enode_django.eventing.unparking import retry_parked
from enode_django.exceptions import DefinitionError
from enode_django.history import reached
from enode_django.management.commands.runprocessors import check_owners
from enode_django.models import Checkpoint, GenerationCheck, HandledRefusal, ParkedEvent, Subscription
from enode_django.monitoring import Health
from enode_django.monitoring.lags import ask_lags
from tests.following.domain import (
    Added,
    Behaviour,
    CounterRows,
    Entries,
    Kindness,
    Opened,
    TooMuch,
    handler_group,
)
from tests.following.harness import Harness, shuffled

WITH_KEYS: list[type[models.Model]] = [Checkpoint, Subscription, ParkedEvent, HandledRefusal, GenerationCheck]


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the subscribers that a test declares."""
    monkeypatch.setattr(declaring, "_declared", list(declaring._declared))
    monkeypatch.setattr(event_handlers, "_groups", {})


def renamed(cls: type[Subscriber], name: str = "following.renamed", *aliases: str) -> Subscriber:
    """Return the subscriber as it is after a deploy that renames it."""
    body = {"name": name, "aliases": aliases or (cls.name,), "__module__": __name__}
    return subscribers.instance(type("Renamed", (cls,), body))


def renamed_group(group: EventHandlerGroup) -> EventHandlerGroup:
    after = EventHandlerGroup("following.renamed")
    for one in group.handlers:
        after.add(one._replace(aliases=(group.name,)))
    return after


def pair(kind: str) -> tuple[Subscriber, Subscriber]:
    """Return a subscriber with its old name and the same one with its new name."""
    if kind == "group":
        group = handler_group()
        return group, renamed_group(group)
    cls = {"rows": CounterRows, "entries": Entries, "process": Kindness}[kind]
    return subscribers.instance(cls), renamed(cls)


def stored_names() -> set[str]:
    return {row.subscriber for model in WITH_KEYS for row in model._base_manager.all()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["rows", "entries", "process", "group"])
def test_a_renamed_subscriber_handles_nothing_again_and_what_is_new(
    harness: Harness, behaviour: Behaviour, kind: str
) -> None:
    before, after = pair(kind)
    records = harness.stored("c", Opened(owner="ann"), Added(amount=1))
    refusal = harness.refused("c", TooMuch("no", amount=9))
    harness.deliver(harness.subscription(before), [*records, refusal])
    calls, sent = list(behaviour.calls), list(harness.sent)
    assert calls
    new = harness.stored("c", Opened(owner="bob"), Added(amount=5), after=2)
    harness.deliver(harness.subscription(after), [*records, refusal, *new], reply_to="sender")
    assert not set(behaviour.calls[len(calls) :]) & {*calls} - {"second"}
    assert len(behaviour.calls) > len(calls)
    assert not {command.id for command in harness.sent[len(sent) :]} & {command.id for command in sent}
    assert stored_names() <= {key_of(before)}
    assert {notice.subscriber for _, notice in harness.notices} == {before.name}


@pytest.mark.parametrize("kind", ["rows", "entries", "process", "group"])
def test_what_was_parked_under_the_old_name_goes_on_under_the_new_one(
    harness: Harness, behaviour: Behaviour, kind: str
) -> None:
    before, after = pair(kind)
    behaviour.failing["c"] = 1_000
    records = harness.stored("c", Opened(owner="ann"), Added(amount=1))
    harness.deliver(harness.subscription(before, attempts=1), records)
    assert [row.subscriber for row in harness.parked("", "c")] == [before.name]
    behaviour.failing["c"] = 0
    with subscribers.only(after):
        assert before.name not in run("enode", "parked", "list", "--subscriber", before.name)
        assert retry_parked(harness.subscription(after), "c") is None
    assert harness.parked("", "c") == []
    assert behaviour.calls.count("c/2/0" if kind in ("entries", "group") else "c/1/0") == 1
    assert stored_names() <= {before.name}


def test_an_event_handled_again_after_the_rename_sends_the_same_commands(harness: Harness) -> None:
    before, after = pair("process")
    records = harness.stored("c", Opened(owner="ann"))
    harness.deliver(harness.subscription(before), records)
    first = [command.id for command in harness.sent]
    Checkpoint.objects.all().delete()  # as after a crash between sending and the checkpoint
    harness.deliver(harness.subscription(after), records)
    assert [command.id for command in harness.sent] == first * 2


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_old_and_new_workers_beside_each_other_handle_each_event_once(
    harness: Harness, behaviour: Behaviour, cls: type[Subscriber]
) -> None:
    records = [one for id in "abc" for one in harness.stored(id, Opened(owner="o"), *[Added(amount=1)] * 8)]
    barrier = threading.Barrier(2)

    def work(subscriber: Subscriber, seed: int) -> None:
        own = Harness()
        subscription = own.subscription(subscriber)
        barrier.wait()
        try:
            own.deliver(subscription, shuffled(records, seed))
        finally:
            connection.close()

    both = [subscribers.instance(cls), renamed(cls)]
    threads = [threading.Thread(target=work, args=(one, seed)) for seed, one in enumerate(both)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if cls is CounterRows:
        assert {id: total for id, (_, total, _) in harness.rows().items()} == dict.fromkeys("abc", 8)
    else:
        assert [len(harness.entries(id)) for id in "abc"] == [8, 8, 8]
    assert stored_names() <= {both[0].name}


def test_the_oldest_alias_is_the_key_after_every_rename(harness: Harness) -> None:
    third = renamed(CounterRows, "following.third", "following.rows", "following.second")
    assert (third.name, key_of(third)) == ("following.third", "following.rows")
    with subscribers.only(third):
        for name in ("following.third", "following.second", "following.rows"):
            assert subscribers.get(name) is third
        assert subscribers.name_of("following.rows") == "following.third"
        assert subscribers.name_of("following.gone") == "following.gone"
        assert subscribers.following(["following.Added"]) == {"following.rows": "following.third"}


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_the_fingerprint_of_the_rows_is_that_of_before_the_rename(cls: type[CounterRows | Entries]) -> None:
    before, after = subscribers.instance(cls), renamed(cls)
    assert isinstance(before, CounterRows | Entries)
    assert isinstance(after, CounterRows | Entries)
    assert rows_fingerprint(after) == rows_fingerprint(before)


def test_how_far_the_aggregate_has_come_is_shown_by_the_new_name(harness: Harness) -> None:
    before, after = pair("entries")
    harness.deliver(harness.subscription(before), harness.stored("c", Added(amount=1), Added(amount=1)))
    with subscribers.only(after):
        assert [(one.subscriber, one.version, one.behind) for one in reached("c")] == [("following.renamed", 2, 0)]


def test_aliases_of_event_handlers_are_those_of_their_group() -> None:
    @event_handler(Added, name="following.mails", aliases=("following.letters",))
    def mails(event: Added) -> None: ...

    (group,) = event_handlers.handler_groups()
    assert (group.name, key_of(group)) == ("following.mails", "following.letters")


@pytest.mark.parametrize("aliases", ["following.letters", ("",), (1,)])
def test_aliases_that_are_no_names_are_refused(aliases: Any) -> None:
    with pytest.raises(DefinitionError, match="give a tuple of the names that it had before"):
        event_handler(Added, name="following.mails", aliases=aliases)
    with pytest.raises(DefinitionError, match="give a tuple of the names that it had before"):
        type("Renamed", (CounterRows,), {"aliases": aliases})


# -- what no code owns ------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(harness: Harness) -> Harness:
    """A harness with stored subscriptions of `Entries` and `Kindness`."""
    harness.deliver(harness.subscription(subscribers.instance(Entries)), harness.stored("c", Added(amount=1)))
    harness.subscription(subscribers.instance(Kindness)).runner.processor.positions(["c"])
    begin(harness, subscribers.instance(Entries))
    return harness


def begin(harness: Harness, *begun: Subscriber) -> None:
    from enode_django.eventing import checkpoints
    from enode_django.eventstore.positions import BEGINNING

    for one in begun:
        checkpoints.subscribe("default", key_of(one), harness.store.number, BEGINNING)


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_class_renamed_without_an_alias_is_refused_with_the_ways_out(stored: Harness) -> None:
    other = renamed(Entries, "following.renamed", "following.other")
    with subscribers.only(other, Kindness), pytest.raises(CommandError) as refused:
        check_owners()
    text = str(refused.value)
    assert "no code owns the stored subscription 'following.entries' (in the database 'default'" in text
    assert 'aliases = ("following.entries",)' in text
    assert "manage.py enode forgetsubscriber following.entries" in text
    assert "manage.py enode keepsubscriber following.entries" in text


def test_with_the_alias_it_starts_and_writes_no_row_again(stored: Harness) -> None:
    after = renamed(Entries)
    with subscribers.only(after, Kindness):
        check_owners()
    stored.deliver(stored.subscription(after), stored.stored("d", Added(amount=2)))
    assert (stored.entries("c"), stored.entries("d")) == ([(1, 1)], [(1, 2)])


def test_a_kept_one_starts_until_it_is_kept_no_longer(stored: Harness) -> None:
    with subscribers.only(Kindness):
        assert run("enode", "keepsubscriber", "following.entries") == "following.entries is kept\n"
        check_owners()
        run("enode", "keepsubscriber", "following.entries", "--no-longer")
        with pytest.raises(CommandError, match="no code owns"):
            check_owners()


def test_one_that_the_code_still_has_can_be_kept_for_a_deploy_or_a_rollback(stored: Harness) -> None:
    with subscribers.only(renamed(Entries)):
        run("enode", "keepsubscriber", "following.renamed")
    with subscribers.only(Kindness):
        check_owners()


def test_one_that_is_not_stored_cannot_be_kept(stored: Harness) -> None:
    with pytest.raises(CommandError, match=r"has no subscription of 'following.gone'; it has those of following\."):
        run("enode", "keepsubscriber", "following.gone")


def test_forgetting_is_refused_for_the_key_of_a_renamed_one(stored: Harness, memory_queue: None) -> None:
    declared = r"following\.entries is still declared as following\.renamed"
    with subscribers.only(renamed(Entries)), pytest.raises(CommandError, match=declared):
        run("enode", "forgetsubscriber", "following.entries")
    with subscribers.only(Kindness):
        run("enode", "forgetsubscriber", "following.entries")
        check_owners()


def test_what_a_moved_subscriber_has_left_in_its_former_database_can_be_forgotten(stored: Harness) -> None:
    moved = type("Moved", (Entries,), {"name": Entries.name, "__module__": __name__})
    setattr(moved, "database", "elsewhere")  # noqa: B010  # as a router may say
    with subscribers.only(moved, Kindness):
        said = run("enode", "forgetsubscriber", Entries.name)  # no queue is asked: its group goes on
    assert re.fullmatch(rf"forgot {Entries.name}: \d+ rows, of the time when it was in default\n", said)
    assert not Subscription.objects.filter(subscriber=Entries.name).exists()
    assert not Checkpoint.objects.filter(subscriber=Entries.name).exists()


@pytest.fixture
def memory_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport()
    transport.create_topic("events", 1)
    monkeypatch.setattr("enode_django.management.subcommands.forgetsubscriber.make_transport_if_any", lambda: transport)


def test_the_status_says_what_no_code_owns(stored: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.monitoring.lags.make_transport_if_any", MemoryTransport)
    with subscribers.only(Kindness):
        assert [(one.health, one.reason.splitlines()[0]) for one in ask_lags().problems if "owns" in one.reason] == [
            (Health.DEGRADED, "no code owns the stored subscription following.entries:")
        ]
        run("enode", "keepsubscriber", "following.entries")
        assert [(one.health, one.reason) for one in ask_lags().problems if "owns" in one.reason] == [
            (Health.OK, "no code owns the stored subscription following.entries, which is kept")
        ]


def test_runprocessors_refuses_to_start(stored: Harness) -> None:
    with subscribers.only(Kindness), pytest.raises(CommandError, match="no code owns the stored subscription"):
        call_command("runprocessors", processes=1, verbosity=0, stdout=io.StringIO())


def test_the_check_of_a_database_warns_before_anything_is_stopped(stored: Harness) -> None:
    with subscribers.only(Kindness):
        (message,) = subscriber_checks.check_owners(None, databases=["default"])
        assert message.id == "enode_django.W170"
        assert "keepsubscriber following.entries" in (message.hint or "")
        run("enode", "keepsubscriber", "following.entries")
        assert subscriber_checks.check_owners(None, databases=["default"]) == []


def test_the_ways_out_name_the_database_if_it_is_not_that_of_checkpoints() -> None:
    here, there = (Unowned("shop.Mails", alias, datetime.now(UTC), None) for alias in ("default", "reports"))
    assert "manage.py enode forgetsubscriber shop.Mails\n" in here.ways_out
    assert "manage.py enode keepsubscriber shop.Mails --database reports" in there.ways_out
