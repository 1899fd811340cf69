"""A command with the ids of another one, but another type or other fields: it is not treated as a repeat."""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from enode_django import execute_command
from enode_django.api.outcomes import problem_of
from enode_django.bus.derived_ids import derived_id
from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.dead_letters import crashed_among, letters_of
from enode_django.commanding.identity import conflict_with_content, conflict_with_row, content_of
from enode_django.conf import conf
from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import DeadLetter
from enode_django.operating.dead_letters import Choice, requeue
from enode_django.serialization.codec import decode_command, encode_command, encode_metadata
from enode_django.testing import inline
from enode_django.web.failures import CONFLICT, status_of
from sample_project.bank.domain import Deposit, OpenAccount
from tests.races.counting import Add, AddSoftly, AddWithin, FailUnless, SetTotal
from tests.races.harness import commands_stored, envelope
from tests.races.test_remembered_answers import Setting
from tests.races.whole_worker import COMMANDS

REUSED = "CommandIdReused"


@pytest.fixture
def setting() -> Setting:
    return Setting()


ON_X: dict[str, Any] = {"aggregate_root_id": "x", "id": "c"}
PAIRS: dict[str, tuple[Command, Command]] = {
    "stored": (Add(**ON_X, amount=5), Add(**ON_X, amount=500)),
    "refused": (AddWithin(**ON_X, limit=0), AddWithin(**ON_X, limit=9)),
    "nothing changed": (SetTotal(**ON_X, total=0), SetTotal(**ON_X, total=7)),
    "refused for now": (AddSoftly(**ON_X, limit=0), AddSoftly(**ON_X, limit=9)),
    "failed": (FailUnless(**ON_X, total=1), FailUnless(**ON_X, total=0)),
    "another type": (SetTotal(**ON_X, total=0), Add(**ON_X, amount=5)),
    "stored, another type": (Add(**ON_X, amount=5), SetTotal(**ON_X, total=9)),
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Command, Command]:
    return PAIRS[request.param]


def test_another_command_with_the_same_ids_fails_and_the_first_keeps_its_answer(
    setting: Setting, pair: tuple[Command, Command], caplog: pytest.LogCaptureFixture
) -> None:
    first, other = pair
    answer = setting.execute(setting.first, first)
    stored = commands_stored(setting.store, "x")
    caplog.clear()
    for _ in range(2):
        refused = setting.execute(setting.first, other)
        assert (refused.status, refused.error_type) == (CommandStatus.FAILED, REUSED)
        assert "the id 'c' stands for a" in refused.error_message
        assert "with an id of its own" in caplog.text
        assert setting.execute(setting.first, first) == answer
    assert commands_stored(setting.store, "x") == stored


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in ("stored", "refused")])
def test_another_worker_refuses_it_as_well_by_the_row_or_the_remembered_answer(setting: Setting, name: str) -> None:
    first, other = PAIRS[name]
    answer = setting.execute(setting.first, first)
    owners = ["first"]
    for number in range(3):
        worker = setting.worker(f"{number}", *owners[-1:])
        owners.append(f"{number}")
        assert setting.execute(worker, other).error_type == REUSED
        assert setting.execute(worker, first) == answer


def test_the_command_that_has_the_row_is_answered_by_it_also_where_the_other_one_came_first(setting: Setting) -> None:
    worker = setting.worker("second", "first", remember=0)
    other, stored = AddSoftly(**ON_X, limit=0), Add(**ON_X, amount=5)
    assert setting.execute(worker, other).status is CommandStatus.REFUSED
    setting.other(stored)
    assert setting.execute(worker, other).error_type == REUSED
    assert setting.execute(worker, stored).status is CommandStatus.SUCCESS


def test_it_is_refused_also_where_it_stood_in_the_queue_when_that_was_taken_over(setting: Setting) -> None:
    """After a takeover, stored rows are looked up before any command is handled."""
    first, other = PAIRS["stored, another type"]
    answer = setting.execute(setting.first, first)
    setting.send(other, first)
    second = setting.worker("second", "first")
    assert second.work() == 0
    again, refused = setting.answers()  # a command that has a row is answered first
    assert (refused.error_type, again) == (REUSED, answer)


def test_fields_of_a_stored_command_are_known_as_long_as_it_is_recent(setting: Setting) -> None:
    """The row does not have the fields. After a restart, the other command counts as a repeat, and has no effect."""
    first, other = PAIRS["stored"]
    answer = setting.execute(setting.first, first)
    second = setting.worker("second", "first")
    for command in (other, first, other):
        assert setting.execute(second, command) == answer
    assert commands_stored(setting.store, "x").count("c") == 1


def letters_when_nobody_waits(setting: Setting, command: Command, metadata: bytes = b"") -> list[str]:
    setting.transport.send(COMMANDS, {0: [encode_command(command, metadata)]})
    finished, _ = setting.first.handle()
    setting.first.publisher.publish(finished)
    return [letter.error_type for letter in letters_of(crashed_among(finished))]


def test_where_nobody_waits_it_becomes_a_dead_letter(setting: Setting, pair: tuple[Command, Command]) -> None:
    first, other = pair
    setting.execute(setting.first, first)
    assert letters_when_nobody_waits(setting, other) == [REUSED]


@pytest.mark.django_db
def test_its_letter_is_sent_again_with_an_id_of_its_own() -> None:
    """The old id would make it a dead letter again, because another command is stored under that id."""
    with inline():
        execute_command(OpenAccount("x", id="c", owner="Ada"))
    body, now = encode_command(Deposit(**ON_X, amount=Decimal(5)), b""), timezone.now()
    DeadLetter.objects.create(
        **{"key": "k" * 32, "command_id": "c", "aggregate_root_id": "x", "command_type": "bank.Deposit", "body": body},
        **{"topic": COMMANDS, "queue": 0, "message_offset": 0, "error_type": REUSED, "error": "", "attempts": 1},
        **{"first_failed_at": now, "last_failed_at": now, "is_answered": False},
    )
    ((_, letters),) = Choice().letters()
    assert [letter.is_stored for letter in letters] == [False]
    transport = MemoryTransport()
    assert requeue(transport, Choice(["c"])) == 1
    topic = conf().COMMANDS.TOPIC
    places = dict.fromkeys(range(conf().QUEUE.QUEUES_PER_TOPIC), 0)
    (sent,) = (
        decode_command(body) for pulled in transport.pull(topic, places, limit=9, wait=0) for body in pulled.bodies
    )
    assert (sent.type_name, sent.fields, sent.id != "c") == ("bank.Deposit", {"amount": Decimal(5)}, True)


def test_http_says_that_the_request_is_at_fault(setting: Setting) -> None:
    setting.execute(setting.first, PAIRS["stored"][0])
    error = setting.execute(setting.first, PAIRS["stored"][1]).error
    assert error is not None
    told = problem_of(error)
    assert (told.status_code, told.body["type"]) == (422, f"urn:problem-type:enode:{REUSED}")
    assert status_of(error) == CONFLICT


def derived(command: type[Command], **fields: Any) -> tuple[Command, bytes]:
    id = derived_id("a/1/0", "tests.process", "races.SetTotal", "x", 1)
    metadata = encode_metadata(Metadata(causation_id="a/1/0", correlation_id="c"))
    return command(aggregate_root_id="x", id=id, **fields), metadata


def test_a_process_manager_that_yields_other_fields_the_second_time_is_told_in_the_log(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The command's id is derived from the event, so it still counts as the same command, with the same outcome."""
    for total in (0, 7):
        assert letters_when_nobody_waits(setting, *derived(SetTotal, total=total)) == []
    assert "its process manager must yield the same for the same event" in caplog.text
    assert letters_when_nobody_waits(setting, *derived(Add)) == [REUSED]
    assert len(commands_stored(setting.store, "x")) == 1


class Marked(Command):
    type_name = "attacks.Marked"
    aliases = ("attacks.Tagged",)
    tags: frozenset[str] = frozenset()
    rates: dict[str, list[int]] = field(default_factory=dict)


class MarkedSince(Command):
    """The class `Marked` in a later version of the code."""

    type_name = "attacks.MarkedSince"
    rates: dict[str, list[int]] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    note: str = ""


def content(command: Command) -> str:
    return content_of(encode_command(command, b""))


def test_what_is_no_other_content() -> None:
    """The content does not depend on the order of a set, on a field that was added with a default, or on a new name."""
    many = [f"{n}" for n in range(40)]
    known = content(Marked("a", tags=frozenset(many), rates={"a": [1], "b": [2]}))
    assert known.startswith("attacks.Tagged/1/")
    assert content(Marked("b", tags=frozenset(many[::-1]), rates={"b": [2], "a": [1]})) == known
    since = MarkedSince("a", tags=frozenset(many), rates={"a": [1], "b": [2]})
    assert content(since).rpartition("/")[2] == known.rpartition("/")[2]
    assert content(Marked("a", tags=frozenset(many[1:]), rates={"a": [1], "b": [2]})) != known
    assert content_of(b"no command") == content_of(None) == ""


class Priced(Command):
    type_name = "attacks.Priced"
    amount: Decimal
    rates: dict[Decimal, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Priced("a", amount=Decimal(500)), Priced("a", amount=Decimal("5E+2"))),
        (Priced("a", amount=Decimal("-0.00")), Priced("a", amount=Decimal(0))),
        (
            Priced("a", amount=Decimal("1E+999999999"), rates={Decimal(5): 0.0}),
            Priced("a", amount=Decimal("1.0E+999999999"), rates={Decimal("5.00"): -0.0}),
        ),
    ],
)
def test_equal_numbers_are_no_other_content_however_they_are_written(one: Command, other: Command) -> None:
    """A sender may make the command anew from a row, whose column gives the number other zeros."""
    assert content(one) == content(other) != ""


def test_numbers_that_differ_in_their_last_digit_are_another_content() -> None:
    assert content(Priced("a", amount=Decimal(10**40))) != content(Priced("a", amount=Decimal(10**40 + 1)))


def test_what_cannot_be_compared_is_no_conflict() -> None:
    add = envelope(Add(**ON_X))
    assert conflict_with_content(add, "races.Add/1/0") is None  # the envelope has no message
    add.body = encode_command(Add(**ON_X), b"")
    assert conflict_with_content(add, "") is None
    assert conflict_with_content(add, "races.Add/2/0011223344556677") is None  # another version of its schema
    assert conflict_with_content(add, "races.Add/1/0011223344556677") is not None


def test_a_row_under_an_alias_or_a_name_that_is_unknown_here_is_no_conflict(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.execute(setting.first, Add(**ON_X))
    row = setting.store.find([("c", "x")])["c", "x"]
    marked = envelope(Marked(**ON_X))
    assert conflict_with_row(marked, row._replace(command_type="attacks.Tagged")) is None
    assert not caplog.text
    assert conflict_with_row(marked, row._replace(command_type="attacks.Later")) is None
    assert "is unknown here" in caplog.text
    assert conflict_with_row(marked, row) is not None


def test_answers_that_an_earlier_version_has_remembered_are_given_again(setting: Setting) -> None:
    """These answers do not have the content of their commands."""
    from enode_django.bus.results import decode_receipt, encode_receipt

    old = CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id="c", aggregate_root_id="x", version=1)
    assert decode_receipt(encode_receipt(old)) == (old, "")
