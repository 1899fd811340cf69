"""In immediate mode, the caller's thread handles the command, and subscribers follow its events."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory

from enode_django import (
    Command,
    CommandResult,
    CommandStatus,
    Retry,
    WaitFor,
    aexecute_command,
    asend_command,
    current_metadata,
    execute_command,
    metadata,
    send_command,
    send_command_on_commit,
    send_commands,
)
from enode_django.commanding.decisions import Envelope
from enode_django.eventing import checkpoints, parking, retry_decisions
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import CommandTimeout, StoreUnavailable
from enode_django.forms import CommandForm
from enode_django.immediate import catch_up
from enode_django.models import EventStream
from enode_django.serialization.codec import decode_metadata
from enode_django.views import CommandView
from tests.acceptance.waiting import wait_until
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import (
    Behaviour,
    Fill,
    Filled,
    Jar,
    JarEntries,
    JarEntry,
    JarRow,
    JarRows,
    Label,
    Labelling,
    Pour,
    mails,
)


def versions(id: str) -> list[int | None]:
    return list(EventStream.objects.filter(aggregate_root_id=id).order_by("sequence").values_list("version", flat=True))


def totals() -> dict[str, int]:
    return dict(JarRow.objects.values_list("pk", "total"))


def waiting_for_locks() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return int(cursor.fetchone()[0])


def in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in a thread with its own connections, like another process."""

    def closing(call: Callable[[], object]) -> None:
        try:
            call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        for future in [threads.submit(closing, call) for call in calls]:
            future.result(60)


def test_a_command_is_stored_answered_and_followed(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, JarEntries, mails())
    with metadata(user="17"):
        result = execute_command(Fill(aggregate_root_id="a", amount=5), wait_for=WaitFor.HANDLED)
    assert (result.status, result.version, result.value, result.parked) == (CommandStatus.SUCCESS, 1, 5, ())
    assert totals() == {"a": 5}
    assert JarEntry.objects.get().version == 1
    assert behaviour.calls == [("mails", "a", 1)]
    assert decode_metadata(bytes(EventStream.objects.get().metadata)).user == "17"
    assert checkpoints.read("default", "immediate.entries", ["a"]) == {"a": 1}


def test_command_handlers_and_projections_see_no_metadata_of_the_sender(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(JarRows, JarEntries, mails())
    with metadata(user_id="17"):
        send_commands([Fill("a"), Label("a")])
        assert current_metadata().user_id == "17"
    assert sorted(behaviour.users) == [("entries", None), ("label", None), ("mails", "17"), ("rows", None)]


@pytest.mark.parametrize("send", [send_command, partial(send_command, outbox=True)])
def test_what_an_event_handler_sends_itself_carries_the_metadata_of_its_event(
    new_process: NewProcess, send: Callable[[Command], object]
) -> None:
    group = EventHandlerGroup("immediate.labels")
    group.add(EventHandler(Filled, "label", 100, lambda event: send(Label(event.aggregate_root_id)), "now"))
    new_process(group)
    with metadata(user_id="17"):
        send_command(Fill("a", id="fill"))
    filled, labelled = Jar.history("a")
    assert (labelled.metadata.user_id, labelled.metadata.correlation_id) == ("17", "fill")
    assert labelled.metadata.causation_id not in ("fill", filled.id)


def test_commands_of_one_call_are_handled_in_order(new_process: NewProcess) -> None:
    new_process(JarRows)
    send_commands(
        [Fill(aggregate_root_id="a", amount=60), Fill(aggregate_root_id="a", amount=60), Fill(aggregate_root_id="a")]
    )
    assert versions("a") == [1, None, 2]
    assert totals() == {"a": 61}


def test_the_same_command_takes_effect_once(new_process: NewProcess) -> None:
    new_process(JarRows)
    command = Fill(aggregate_root_id="a", amount=5)
    assert execute_command(command) == execute_command(command)
    assert totals() == {"a": 5}


def test_an_expected_version_is_looked_at(new_process: NewProcess) -> None:
    new_process()
    execute_command(Fill(aggregate_root_id="a"), expected_version=0)
    send_command(Fill(aggregate_root_id="a"), expected_version=0)
    assert versions("a") == [1, None]


@pytest.mark.parametrize("by_context", [True, False])
def test_what_a_handler_sends_is_handled_after_it(new_process: NewProcess, by_context: bool) -> None:
    new_process(JarRows)
    send_command(Pour(aggregate_root_id="a", into="b", by_context=by_context))
    assert totals() == {"a": 1, "b": 1}


def test_what_a_handler_sends_by_its_context_is_stored_with_its_events_or_not_at_all(new_process: NewProcess) -> None:
    new_process(JarRows)
    send_command(Pour(aggregate_root_id="a", into="b", fails=True))
    assert totals() == {}


@pytest.mark.parametrize("times", [1, 10_000])
def test_what_is_sent_by_a_context_is_stored_in_one_transaction(
    new_process: NewProcess, behaviour: Behaviour, times: int
) -> None:
    new_process()
    behaviour.cut = ("b", times)
    if times > 1:
        with pytest.raises(StoreUnavailable):
            send_command(Pour(aggregate_root_id="a", into="b"))
    else:
        send_command(Pour(aggregate_root_id="a", into="b"))
    assert (versions("a"), versions("b")) == (([], []) if times > 1 else ([1], [1]))


def test_a_process_managers_command_is_handled_and_its_own_events_come_after(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(Labelling, JarRows)
    execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)
    execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)
    assert versions("a") == [1, 2, 3]
    assert behaviour.calls == [("labelling", "a", 1), ("labelling", "a", 3)]


def test_asynchronous_callers(new_process: NewProcess) -> None:
    new_process(JarRows)

    async def work() -> int | None:
        await asend_command(Fill(aggregate_root_id="a"))
        try:
            return (await aexecute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)).version
        finally:
            await sync_to_async(connections.close_all)()

    assert asyncio.run(work()) == 2
    assert totals() == {"a": 2}


# -- errors of subscribers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["rows", "entries", "mails"])
def test_an_error_of_a_subscriber_is_not_the_callers(
    new_process: NewProcess, behaviour: Behaviour, failing: str
) -> None:
    new_process(JarRows, JarEntries, mails())
    behaviour.failing.add((failing, "a"))
    result = execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)
    assert (result.status, result.parked) == (CommandStatus.SUCCESS, (f"immediate.{failing}",))
    execute_command(Fill(aggregate_root_id="a"))
    execute_command(Fill(aggregate_root_id="b"))
    handled = {"rows": totals().get("a"), "entries": JarEntry.objects.filter(aggregate_root_id="a").count()}
    handled["mails"] = sum(id == "a" for _, id, _ in behaviour.calls)
    assert not handled.pop(failing), "the later events wait behind the one that failed"
    assert set(handled.values()) == {2}


class FillPage(CommandView):
    command = Fill
    success_url = "/jars/{aggregate_root_id}/"
    wait_for = WaitFor.HANDLED

    def has_permission(self) -> bool:
        return True

    def command_parked(self, form: CommandForm, result: CommandResult) -> HttpResponse:
        return HttpResponse(f"not shown by {', '.join(result.parked)}")


def test_a_page_can_tell_that_the_projection_it_waits_for_has_parked_the_aggregate(
    new_process: NewProcess, behaviour: Behaviour, rf: RequestFactory
) -> None:
    new_process(JarRows)
    behaviour.failing.add(("rows", "a"))
    sent = rf.post("/", {"amount": "1"})
    assert FillPage.as_view()(sent, aggregate_root_id="a").content == b"not shown by immediate.rows"
    assert FillPage.as_view()(sent, aggregate_root_id="b")["Location"] == "/jars/b/"


class RenamedRows(JarRows):
    """It was ``immediate.rows`` before."""

    name = "immediate.renamed"
    aliases = ("immediate.rows",)
    abstract = True


@pytest.mark.parametrize("wait_for", [WaitFor.HANDLED, WaitFor.subscriber("immediate.renamed")])
def test_a_subscriber_that_was_renamed_is_waited_for_by_its_name(
    new_process: NewProcess, behaviour: Behaviour, wait_for: WaitFor
) -> None:
    new_process(JarRows)
    send_command(Fill("a"))
    new_process(RenamedRows)
    behaviour.failing.add(("rows", "a"))
    assert execute_command(Fill("a"), wait_for=wait_for).parked == ("immediate.renamed",)
    assert execute_command(Fill("b"), wait_for=wait_for).parked == ()
    assert totals() == {"a": 1, "b": 1}


class RenamedEntries(JarEntries):
    """It was ``immediate.entries`` before, and nobody says so."""

    name = "immediate.renamed_entries"
    abstract = True


def test_a_subscriber_that_was_renamed_without_an_alias_handles_nothing_twice(
    new_process: NewProcess, caplog: pytest.LogCaptureFixture
) -> None:
    new_process(JarEntries)
    send_command(Fill("a"))
    new_process(RenamedEntries, JarRows)
    with pytest.raises(CommandTimeout, match=r"not handled by immediate\.renamed_entries, immediate\.rows"):
        execute_command(Fill("a"), wait_for=WaitFor.HANDLED)
    assert JarEntry.objects.count() == 1
    assert "no code owns the stored subscription 'immediate.entries'" in caplog.text
    assert 'aliases = ("immediate.entries",)' in caplog.text
    checkpoints.keep("default", "immediate.entries", is_kept=True)
    execute_command(Fill("a"), wait_for=WaitFor.subscriber("immediate.rows"))
    assert totals() == {"a": 3}


def test_what_is_parked_is_tried_again_with_a_later_command_when_it_is_due(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(JarRows)
    behaviour.failing.add(("rows", "a"))
    send_command(Fill(aggregate_root_id="a"))
    send_command(Fill(aggregate_root_id="a"))
    behaviour.failing.clear()
    new_process(JarRows)
    send_command(Fill(aggregate_root_id="b"))
    assert totals() == {"b": 1}, "it is due in a minute"
    parking.hurry("default", "immediate.rows", "a")
    new_process(JarRows)
    send_command(Fill(aggregate_root_id="b"))
    assert totals() == {"a": 2, "b": 2}
    assert parking.list_parked("default") == []


# -- several at once --------------------------------------------------------------------------------------------------


def test_callers_at_once_lose_nothing_and_nothing_is_projected_twice(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(JarRows, JarEntries, Labelling, mails())

    def fill_often() -> None:
        for _ in range(10):
            execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)

    in_threads(*[fill_often] * 4)
    assert totals() == {"a": 40}
    assert JarEntry.objects.count() == 40
    assert versions("a") == [*range(1, 42)], "with the label"
    called = [version for name, _, version in behaviour.calls if name == "mails"]
    assert len(called) == 40 == len(set(called))


def test_an_event_handler_is_at_an_aggregate_for_one_caller_at_a_time(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(mails())
    behaviour.may_go_on = may_go_on = threading.Event()

    def second() -> None:
        assert behaviour.entered.wait(60)
        execute_command(Fill(aggregate_root_id="a"))

    def let_go_on() -> None:
        wait_until(lambda: bool(waiting_for_locks()), "the second caller waits for the first")
        may_go_on.set()

    in_threads(lambda: execute_command(Fill(aggregate_root_id="a")), second, let_go_on)
    assert behaviour.calls == [("mails", "a", 1), ("mails", "a", 2)]


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_rollback_undoes_the_command_and_its_rows_and_nobody_is_mailed(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(JarRows, JarEntries, mails())
    with transaction.atomic():
        execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)
        assert totals() == {"a": 1}
        transaction.set_rollback(True)
    assert (totals(), versions("a"), behaviour.calls) == ({}, [], [])
    execute_command(Fill(aggregate_root_id="a"))
    assert (totals(), versions("a"), behaviour.calls) == ({"a": 1}, [1], [("mails", "a", 1)])


def test_side_effects_wait_for_the_commit(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, mails(), Labelling)
    with transaction.atomic():
        execute_command(Fill(aggregate_root_id="a"))
        execute_command(Fill(aggregate_root_id="b"))
        assert behaviour.calls == []
    assert [call for call in behaviour.calls if call[0] == "mails"] == [("mails", "a", 1), ("mails", "b", 1)]
    assert (versions("a"), versions("b")) == ([1, 2], [1, 2])


def test_a_command_may_be_sent_when_a_transaction_commits(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        send_command_on_commit(Fill(aggregate_root_id="a"))
        assert totals() == {}
    assert totals() == {"a": 1}


# -- leftovers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_transaction", [False, True])
def test_the_first_command_of_a_process_makes_good_what_another_has_left(
    new_process: NewProcess, behaviour: Behaviour, in_transaction: bool
) -> None:
    new_process(JarRows, JarEntries, mails())
    send_command(Fill(aggregate_root_id="a"))
    with subscribers.only():  # it ends before anybody follows
        send_command(Fill(aggregate_root_id="a"))
    new_process(JarRows, JarEntries, mails())
    if in_transaction:
        with transaction.atomic():
            send_command(Fill(aggregate_root_id="b"))
    else:
        send_command(Fill(aggregate_root_id="b"))
    assert totals() == {"a": 2, "b": 1}
    assert JarEntry.objects.count() == 3
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "a", 2), ("mails", "b", 1)]


def test_catching_up_in_a_transaction_that_is_rolled_back_leaves_nothing_out(new_process: NewProcess) -> None:
    new_process(JarRows)
    with subscribers.only():
        send_command(Fill("a"))
    with transaction.atomic():
        catch_up()
        assert totals() == {"a": 1}
        transaction.set_rollback(True)
    assert totals() == {}
    catch_up()
    assert totals() == {"a": 1}


@pytest.mark.parametrize("pause", [retry_decisions.SHORTEST_PAUSE, 0.0], ids=["short", "shorter than a try"])
def test_catching_up_ends_while_a_handler_asks_to_be_called_again_at_once(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(retry_decisions, "SHORTEST_PAUSE", pause)

    def wait(name: str, id: str) -> None:
        calls.append(id)
        if len(calls) < 50:  # a catch-up that does not end would hang the test
            raise Retry(after=0)

    monkeypatch.setattr(behaviour, "meet", wait)
    new_process(mails())
    execute_command(Fill("a"))
    catch_up()
    assert len(calls) < 50


def test_so_does_the_next_event_of_the_aggregate(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, mails())
    send_command(Fill(aggregate_root_id="a"))
    with subscribers.only():
        send_command(Fill(aggregate_root_id="a"))
    send_command(Fill(aggregate_root_id="a"))
    assert totals() == {"a": 3}
    assert behaviour.calls == [("mails", "a", 1), ("mails", "a", 2), ("mails", "a", 3)]


def test_a_subscriber_that_cannot_be_run_is_named_to_who_waits(new_process: NewProcess) -> None:
    new_process(JarEntries)
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE immediate_jarentry RENAME TO gone")
    try:
        with pytest.raises(CommandTimeout, match=r"but not handled by immediate\.entries") as caught:
            execute_command(Fill(aggregate_root_id="a"), wait_for=WaitFor.HANDLED)
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute("ALTER TABLE gone RENAME TO immediate_jarentry")
    assert caught.value.executed is not None
    assert caught.value.executed.version == 1
    assert caught.value.missing == ("immediate.entries",)
    new_process(JarEntries)
    send_command(Fill(aggregate_root_id="b"))
    assert JarEntry.objects.count() == 2


def test_nothing_of_a_command_stays_in_memory(new_process: NewProcess) -> None:
    new_process(JarRows, JarEntries, Labelling, mails())

    def held() -> int:
        gc.collect()
        # type() does not follow weak proxies. isinstance() does, and the objects behind them may have died.
        return sum(issubclass(type(one), Envelope | StreamRecord) for one in gc.get_objects())

    send_command(Fill(aggregate_root_id="a"))
    before = held()
    for _ in range(5):
        send_command(Fill(aggregate_root_id="a"))
    assert held() <= before
