"""Outcomes of commands, on the real store and the real queue."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse

from enode_django import (
    Command,
    CommandStatus,
    asend_command,
    atry_command,
    execute_command,
    metadata,
    send_command,
    send_command_on_commit,
    send_commands,
    try_command,
)
from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, decode_result
from enode_django.conf import conf
from enode_django.exceptions import CommandFailed, CommandTimeout, DefinitionError, InvalidField, InvalidId
from enode_django.middleware import EnodeMiddleware
from enode_django.models import EventStream
from enode_django.runtime import current_bus, make_store
from enode_django.serialization.codec import decode_metadata, encode_command, encode_stream
from enode_django.serialization.plain import pack
from tests.integration.notebook import (
    ChangeTitle,
    ChangeTitleLoudly,
    Count,
    CreateNote,
    ExecuteInside,
    GiveResult,
    NoThanks,
    OpenAsDrawer,
    RaiseInAggregate,
    RaiseInHandler,
    Refuse,
    TellMetadata,
    TitleChanged,
    TouchAnother,
    Unhandled,
    WriteMuch,
)
from tests.integration.running import Processors, processors, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(redis_url: str) -> Iterator[Processors]:
    with processors(WORKERS={"UNKNOWN_TYPE_DELAYS": (0.05, 0.1)}, COMMANDS={"EVENTS_MAX_BYTES": 50_000}) as running:
        yield running


@pytest.fixture
def note(running: Processors) -> str:
    id = str(uuid.uuid4())
    execute(CreateNote(aggregate_root_id=id)).raise_for_status()
    return id


def execute(command: Command) -> CommandResult:
    return try_command(command, timeout=240)


def stored_versions(id: str) -> list[int | None]:
    return list(EventStream.objects.filter(aggregate_root_id=id).order_by("sequence").values_list("version", flat=True))


# -- success ------------------------------------------------------------------------------------------------------


def test_create_and_update(running: Processors) -> None:
    created = execute(CreateNote(aggregate_root_id="n", title="one"))
    assert (created.status, created.version, created.value) == (CommandStatus.SUCCESS, 1, {"title": "one"})
    updated = execute(ChangeTitle(aggregate_root_id="n", title="two"))
    assert (updated.status, updated.version, updated.value) == (CommandStatus.SUCCESS, 2, "ChangeTitle")
    assert stored_versions("n") == [1, 2]
    assert updated.raise_for_status() is updated


@pytest.mark.parametrize("restart", [False, True])
def test_repeated_create_and_update_succeed_again_with_the_same_result(running: Processors, restart: bool) -> None:
    create = CreateNote(aggregate_root_id="n", title="one")
    rich = GiveResult(aggregate_root_id="n")
    first = [execute(create), execute(rich), execute(Count(aggregate_root_id="n"))]
    if restart:
        running.restart()
    assert [execute(create), execute(rich)] == first[:2]
    assert first[1].value == {"list": [1, None, "ü"], "bytes": b"\0", "big": 2**70}
    assert stored_versions("n") == [1, 2, 3]


@pytest.mark.parametrize("restart", [False, True])
def test_a_command_takes_effect_on_the_version_its_sender_saw(running: Processors, note: str, restart: bool) -> None:
    late, change = Count(aggregate_root_id=note), ChangeTitle(aggregate_root_id=note, title="two")
    refused = try_command(late, timeout=240, expected_version=2)
    done = try_command(change, timeout=240, expected_version=1)
    assert (refused.status, refused.error_type) == (CommandStatus.REFUSED, "enode.VersionMismatch")
    assert refused.error_fields == {"expected_version": 2, "version": 1}
    assert (done.status, done.version) == (CommandStatus.SUCCESS, 2)
    if restart:
        running.restart()
    assert try_command(late, timeout=240, expected_version=2) == refused
    assert try_command(change, timeout=240, expected_version=1) == done
    assert stored_versions(note) == [1, None, 2]


@pytest.mark.parametrize("restart", [False, True])
def test_nothing_changed(running: Processors, note: str, restart: bool) -> None:
    change = ChangeTitle(aggregate_root_id=note, title="untitled")
    first = execute(change)
    assert (first.status, first.version, first.value) == (CommandStatus.NOTHING_CHANGED, 1, "ChangeTitle")
    if restart:
        running.restart()
    assert execute(change) == first
    assert stored_versions(note) == [1]
    assert execute(GiveResult(aggregate_root_id=note, change=False)).value["big"] == 2**70


def test_handler_is_found_by_the_commands_base_class(running: Processors, note: str) -> None:
    assert execute(ChangeTitleLoudly(aggregate_root_id=note, title="LOUD")).value == "ChangeTitleLoudly"


def test_a_hundred_concurrent_updates_of_one_aggregate_all_succeed(running: Processors, note: str) -> None:
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda _: execute(Count(aggregate_root_id=note)), range(100)))
    assert {result.status for result in results} == {CommandStatus.SUCCESS}
    assert sorted(result.version or 0 for result in results) == list(range(2, 102))
    assert stored_versions(note) == list(range(1, 102))


def test_updates_after_planted_rows_all_succeed_without_gap_or_repeat(running: Processors, note: str) -> None:
    execute(Count(aggregate_root_id=note)).raise_for_status()  # the worker has the aggregate in memory
    (row,) = make_store().load(note, after=1)
    planted = [row._replace(version=3 + n, command_id=f"planted-{n}", created_at=datetime.now(UTC)) for n in range(3)]
    make_store().append(planted)
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: execute(Count(aggregate_root_id=note)), range(50)))
    assert {result.status for result in results} == {CommandStatus.SUCCESS}
    assert sorted(result.version or 0 for result in results) == list(range(6, 56))
    assert stored_versions(note) == list(range(1, 56))


# -- failure ------------------------------------------------------------------------------------------------------


def failed(result: CommandResult) -> tuple[str, str]:
    assert result.status is CommandStatus.FAILED
    assert result.version is None
    with pytest.raises(CommandFailed, match=result.error_type):
        result.raise_for_status()
    return result.error_type, result.error_message


def test_another_create_for_the_same_id_fails(running: Processors, note: str) -> None:
    name, message = failed(execute(CreateNote(aggregate_root_id=note)))
    assert name == "AggregateAlreadyExists"
    assert note in message
    assert stored_versions(note) == [1]


def test_no_handler_fails(running: Processors, note: str) -> None:
    name, message = failed(execute(Unhandled(aggregate_root_id=note)))
    assert name == "HandlerNotFound"
    assert "@command_handler, and annotate its parameter with Unhandled" in message


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        (RaiseInHandler(aggregate_root_id="n"), "RuntimeError", "the handler is broken"),
        (RaiseInHandler(aggregate_root_id="n", after_apply=True), "RuntimeError", "the handler is broken"),
        (RaiseInAggregate(aggregate_root_id="n"), "ZeroDivisionError", "the aggregate is broken"),
        (GiveResult(aggregate_root_id="n", unstorable=True), "InvalidField", "cannot be stored"),
        (GiveResult(aggregate_root_id="n", unstorable=True, change=False), "InvalidField", "cannot be stored"),
        (WriteMuch(aggregate_root_id="n", size=60_000), "MessageTooLarge", "EVENTS_MAX_BYTES"),
        (OpenAsDrawer(aggregate_root_id="n"), "AggregateTypeMismatch", "'n' is of the class Note, not Drawer"),
        (TouchAnother(aggregate_root_id="n", other="m", how="change"), "ForeignAggregateChanged", "'m'"),
        (TouchAnother(aggregate_root_id="n", other="new", how="add"), "ForeignAggregateChanged", "'new'"),
        (TouchAnother(aggregate_root_id="n", other="none", how="read"), "AggregateNotFound", "'none'"),
        (Count(aggregate_root_id="missing"), "AggregateNotFound", "'missing'"),
    ],
)
def test_failure_names_type_and_message_stores_nothing_and_leaves_clean_state(
    running: Processors, command: Command, name: str, text: str
) -> None:
    for id in ("n", "m"):
        execute(CreateNote(aggregate_root_id=id, title="kept")).raise_for_status()
    error_type, message = failed(execute(command))
    assert error_type == name
    assert text in message
    assert (stored_versions("n"), stored_versions("m"), stored_versions("new")) == ([1], [1], [])
    assert execute(ChangeTitle(aggregate_root_id="n", title="kept")).status is CommandStatus.NOTHING_CHANGED
    assert execute(Count(aggregate_root_id="n")).value == 1
    assert execute(Count(aggregate_root_id="m")).value == 1


def test_another_aggregate_may_be_read(running: Processors, note: str) -> None:
    execute(CreateNote(aggregate_root_id="other")).raise_for_status()
    execute(Count(aggregate_root_id="other")).raise_for_status()
    assert execute(TouchAnother(aggregate_root_id=note, other="other", how="read")).value == 1


@pytest.mark.parametrize("restart", [False, True])
def test_refusal_is_stored_and_repeated_whatever_has_changed_since(
    running: Processors, note: str, restart: bool
) -> None:
    command = Refuse(aggregate_root_id=note)
    first = execute(command)
    assert (first.status, first.error_fields) == (CommandStatus.REFUSED, {"count": 0})
    with pytest.raises(NoThanks, match="not today") as caught:
        execute_command(command, timeout=240)
    assert (caught.value.count, caught.value.result) == (0, first)
    assert stored_versions(note) == [1, None]
    execute(Count(aggregate_root_id=note)).raise_for_status()
    if restart:
        running.restart()
    assert execute(command) == first
    assert stored_versions(note) == [1, None, 2]


# -- messages that are not commands -------------------------------------------------------------------------------


def send_bytes(key: str, *bodies: bytes) -> None:
    current_bus()
    from enode_django.runtime import make_producer, make_transport

    transport = make_transport()
    make_producer(transport).send_batch(conf().COMMANDS.TOPIC, [(key, body) for body in bodies])
    transport.close()


def test_garbage_is_dead_lettered_with_its_position_and_the_queue_goes_on(
    running: Processors, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    send_bytes(note, b"garbage", b"", pack([1, 2]), pack((1, "notebook.Count", "", note, {}, b"", "")))
    assert execute(Count(aggregate_root_id=note)).value == 1
    letters = wait_for(lambda: len(found := running.dead_letters()) == 4 and found)
    assert {bytes(letter.body) for letter in letters} >= {b"garbage", b""}
    for letter in letters:
        text = letter.error.strip().rpartition(": ")[2]
        assert f"{letter.topic}/{letter.queue}, offset {letter.message_offset}: " in caplog.text
        assert text in caplog.text
        assert letter.error_type in ("MalformedMessage", "InvalidId")


def test_field_of_the_wrong_type_is_answered_and_dead_lettered(running: Processors, note: str) -> None:
    inbox = running.transport.open_inbox()
    body = pack((1, "notebook.ChangeTitle", "c", note, {"title": 5}, b"", inbox.address))
    send_bytes(note, body, pack((1, "notebook.ChangeTitle", "d", note, {"tilte": ""}, b"", inbox.address)))
    answers: list[CommandResult] = []
    wait_for(lambda: answers.extend(map(decode_result, inbox.receive(0.1))) or len(answers) == 2)
    assert [failed(answer)[0] for answer in answers] == ["InvalidField"] * 2
    assert "ChangeTitle.title" in answers[0].error_message
    assert "'tilte'" in answers[1].error_message
    letters = wait_for(lambda: len(found := running.dead_letters()) == 2 and found)
    assert body in {bytes(letter.body) for letter in letters}
    assert all(letter.is_answered for letter in letters)
    assert execute(Count(aggregate_root_id=note)).value == 1
    inbox.close()


def test_unknown_type_is_tried_again_then_answered_and_dead_lettered_and_what_waits_behind_it_goes_on(
    running: Processors, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = running.transport.open_inbox()
    send_bytes(note, pack((1, "notebook.FromTheFuture", "c", note, {}, b"", inbox.address)))
    assert execute(Count(aggregate_root_id=note)).value == 1
    (answer,) = map(decode_result, wait_for(lambda: inbox.receive(0.1)))
    name, message = failed(answer)
    assert name == "UnknownMessageType"
    assert "notebook.FromTheFuture" in message
    assert caplog.text.count("trying again in") == 2
    assert len(wait_for(running.dead_letters)) == 1
    inbox.close()


def test_bad_ids_and_bad_values_are_refused_where_the_command_is_made() -> None:
    for bad in ("", "x" * 256, "a\0b", "\ud800"):
        with pytest.raises(InvalidId):
            Count(aggregate_root_id=bad)
        with pytest.raises(InvalidId):
            Count(aggregate_root_id="a", id=bad)
    with pytest.raises(InvalidField, match=r"ChangeTitle\.title"):
        ChangeTitle(aggregate_root_id="a", title=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["x" * 255, "ключ 🗝", "'; --", " ", "{}", "*"])
def test_strange_ids_work(running: Processors, id: str) -> None:
    assert execute(CreateNote(aggregate_root_id=id, id=id)).status is CommandStatus.SUCCESS
    assert execute(Count(aggregate_root_id=id)).version == 2


# -- metadata -----------------------------------------------------------------------------------------------------


def test_metadata_travels_to_handler_event_row_and_published_message(running: Processors, note: str) -> None:
    command = TellMetadata(aggregate_root_id=note, id="told")
    with metadata(user_id="ada", request="r1", correlation_id="talk", shop=7):
        result = execute(command)
    assert result.value == {"seen": ["ada", "r1", "talk", {"shop": 7}], "event": ["ada", "talk", "told"]}
    row = EventStream.objects.get(command_id="told")
    stored = decode_metadata(bytes(row.metadata))
    assert (stored.user, stored.request, stored.correlation_id, stored.extra) == ("ada", "r1", "talk", {"shop": 7})
    published = wait_for(
        lambda: [p for p in map(decode_published, running.published()) if p.record.command_id == "told"]
    )
    assert decode_metadata(published[0].record.metadata) == stored
    assert published[0].record.events == bytes(row.events)
    assert execute(TellMetadata(aggregate_root_id=note)).value["seen"] == [None, None, None, {}]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_middleware_says_who_asked(running: Processors, note: str, asynchronous: bool) -> None:
    class User:
        pk = 42
        is_authenticated = True

    request = HttpRequest()
    request.META["HTTP_X_REQUEST_ID"] = "req-1"
    request.user = User()  # type: ignore[assignment]
    values: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        values.append(execute(TellMetadata(aggregate_root_id=note)).value)
        return HttpResponse()

    async def async_view(request: HttpRequest) -> HttpResponse:
        values.append((await atry_command(TellMetadata(aggregate_root_id=note), timeout=240)).value)
        return HttpResponse()

    if asynchronous:
        asyncio.run(EnodeMiddleware(async_view)(request))
    else:
        EnodeMiddleware(view)(request)
    assert values[0]["seen"] == ["42", "req-1", "req-1", {}]


# -- sending ------------------------------------------------------------------------------------------------------


def test_commands_sent_without_waiting_are_executed_in_order(running: Processors, note: str) -> None:
    send_command(ChangeTitle(aggregate_root_id=note, title="1"))
    send_commands(ChangeTitle(aggregate_root_id=note, title=f"{n}") for n in range(2, 10))
    asyncio.run(asend_command(ChangeTitle(aggregate_root_id=note, title="10")))
    result = execute(ChangeTitle(aggregate_root_id=note, title="10"))
    assert (result.status, result.version) == (CommandStatus.NOTHING_CHANGED, 11)
    send_commands([])


def test_command_sent_on_commit_waits_for_it_and_dies_with_a_rollback(running: Processors, note: str) -> None:
    with transaction.atomic():
        send_command_on_commit(Count(aggregate_root_id=note, id="never"))
        transaction.set_rollback(True)
    with transaction.atomic():
        send_command_on_commit(ChangeTitle(aggregate_root_id=note, title="sent"))
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        with pytest.warns(RuntimeWarning, match="send_command_on_commit"):
            assert execute(Count(aggregate_root_id=note)).version == 2
    assert execute(Count(aggregate_root_id=note)).version == 4
    assert not EventStream.objects.filter(command_id="never").exists()


def test_execute_inside_a_handler_raises(running: Processors, note: str) -> None:
    name, message = failed(execute(ExecuteInside(aggregate_root_id=note)))
    assert name == "ExecuteInsideHandler"
    assert "Count" in message


def test_execute_asynchronously_many_at_once(running: Processors, note: str) -> None:
    async def many() -> list[CommandResult]:
        return await asyncio.gather(*(atry_command(Count(aggregate_root_id=note), timeout=240) for _ in range(20)))

    assert sorted(result.version or 0 for result in asyncio.run(many())) == list(range(2, 22))


def test_a_timeout_says_where_the_command_is_and_how_to_ask_again(running: Processors, note: str) -> None:
    running.stop()
    command = Count(aggregate_root_id=note, id="late")
    wait_for(lambda: WAS_SENT.match(timed_out(lambda: try_command(command, timeout=0.05))))
    wait_for(lambda: WAS_SENT.match(timed_out(lambda: asyncio.run(atry_command(command, timeout=0.05)))))
    running.start()
    assert execute(command).version == 2
    assert stored_versions(note) == [1, 2]


WAS_SENT = re.compile(
    r"Count 'late' was sent \(commands-\w+/\d, offset \d+\) but not answered within 0\.05 s; .*runprocessors"
)


def timed_out(call: Callable[[], object]) -> str:
    """Return what the timeout says. If the queue has not confirmed the command in time, that is another text."""
    with pytest.raises(CommandTimeout) as caught:
        call()
    return str(caught.value)


def test_a_forked_child_executes_commands_with_a_bus_of_its_own(running: Processors, note: str) -> None:
    execute(Count(aggregate_root_id=note)).raise_for_status()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover (the child)
        try:
            answer = f"{execute(Count(aggregate_root_id=note)).version}"
        except BaseException as error:
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        assert answers.read() == "3"
    os.waitpid(pid, 0)
    assert execute(Count(aggregate_root_id=note)).version == 4


@pytest.mark.parametrize("wrong", [None, "command", Count])
def test_what_is_no_command_is_refused(wrong: Any) -> None:
    for send in (send_command, send_command_on_commit, execute_command):
        with pytest.raises(DefinitionError, match=r"is not a command|got the class Count; make an instance"):
            send(wrong)
    with pytest.raises(DefinitionError, match="WaitFor"):
        try_command(Count(aggregate_root_id="a"), wait_for="executed")  # type: ignore[arg-type]


def test_every_stored_stream_is_published_in_order_and_refusals_too(running: Processors, note: str) -> None:
    send_commands(Count(aggregate_root_id=note) for _ in range(30))
    execute(Refuse(aggregate_root_id=note))
    records = wait_for(
        lambda: len(found := [decode_published(body).record for body in running.published()]) == 32 and found
    )
    assert [record.version for record in records] == [*range(1, 32), None]


def test_a_command_sent_before_any_worker_runs_is_handled_when_one_starts(running: Processors, note: str) -> None:
    running.stop()
    body = encode_command(Count(aggregate_root_id=note, id="early"), b"")
    send_bytes(note, body, body)
    running.start()
    assert execute(Count(aggregate_root_id=note)).version == 3


def test_what_a_dead_worker_stored_and_did_not_publish_is_published_before_what_comes_after(
    running: Processors, note: str
) -> None:
    running.stop()
    (row,) = (row._replace(command_type="notebook.ChangeTitle") for row in make_store().load(note))
    commands = [ChangeTitle(aggregate_root_id=note, id=f"{note}-{n}", title=f"{n}") for n in range(60)]
    send_commands(commands)
    stored = [
        row._replace(version=n + 2, command_id=command.id, events=encode_stream([TitleChanged(title=command.title)]))
        for n, command in enumerate(commands[:40])
    ]
    make_store().append(stored)
    running.start()
    assert execute(Count(aggregate_root_id=note)).version == 62
    records = wait_for(
        lambda: len(found := [decode_published(body).record for body in running.published()]) >= 62 and found
    )
    assert [record.version for record in records] == list(range(1, 63))
    assert [record.command_id for record in records[1:61]] == [command.id for command in commands]
