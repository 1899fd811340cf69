"""The table "What a crash at each step leads to", line by line: a worker dies there, somebody else writes, another
worker takes over."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest

from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, CommandStatus, decode_result
from enode_django.domain.messages import Command
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.serialization.codec import encode_command
from tests.docs.pages import DOCS, tables
from tests.races.counting import Add, AddWithin, Create, SetTotal
from tests.races.harness import Worker as Rival
from tests.races.harness import assert_history_is_whole
from tests.races.whole_worker import WholeWorker

ID = "x"


class Died(BaseException):
    """The process is gone: nothing after this line runs."""


class Mortal:
    """A driver in whose hands the process dies: before or after the call of one method."""

    def __init__(self, driver: object, end: str) -> None:
        self._driver = driver
        self._end = end

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._driver, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._end == f"before {name}":
                raise Died
            result = method(*args, **kwargs)
            if self._end == f"after {name}":
                raise Died
            return result

        return call


class Case(NamedTuple):
    """``row``: the first cell of the table. ``anew``: whether the second worker decides. The rest is counted."""

    row: str
    end: str
    commands: str
    anew: bool
    answers: int
    published: int = 1


WITH_ROW, ALL = "stream refusal", "stream refusal verdict"
CASES = [
    Case("before it pulled", "before pull", ALL, True, 1),
    Case("after pulling or handling, before the store", "after pull", ALL, True, 1),
    Case("after pulling or handling, before the store", "after load_many", ALL, True, 1),
    Case("during `COPY`", "before append", WITH_ROW, True, 1),
    Case("during `COPY`", "after append", WITH_ROW, False, 1),
    Case("after storing, before answering", "before reply", WITH_ROW, False, 1),
    Case("after answering, before publishing", "after reply", WITH_ROW, False, 2),
    Case("after publishing, before the offset is committed", "after send", WITH_ROW, False, 2, 2),
    Case("with a verdict, before the offset is committed", "before commit", "verdict", True, 1),
    Case("with a verdict, after the commit, before answering", "after commit", "verdict", False, 0, 0),
]
# On a total of 0 the first adds, the second refuses and the third changes nothing; on -1 each of them succeeds.
COMMANDS: dict[str, Command] = {
    "stream": Add(aggregate_root_id=ID, id="c"),
    "refusal": AddWithin(aggregate_root_id=ID, id="c", limit=0),
    "verdict": SetTotal(aggregate_root_id=ID, id="c", total=0),
}
FIRST = {
    "stream": (CommandStatus.SUCCESS, 2),
    "refusal": (CommandStatus.REFUSED, None),
    "verdict": (CommandStatus.NOTHING_CHANGED, 1),
}


@pytest.mark.parametrize(
    ("case", "kind"),
    [pytest.param(case, kind, id=f"{kind}-{case.end}") for case in CASES for kind in case.commands.split()],
)
def test_a_crash_leads_to_what_the_table_says(case: Case, kind: str) -> None:
    store, transport, command = MemoryEventStore(), MemoryTransport(), COMMANDS[kind]
    Rival(store).run(Create(aggregate_root_id=ID))
    for topic in ("commands", "events"):
        transport.create_topic(topic, 1)
    inbox = transport.open_inbox()
    body = encode_command(command, b"", inbox.address)
    transport.send("commands", {0: [body]})

    mortal = cast(Transport, Mortal(transport, case.end)), cast(EventStore, Mortal(store, case.end))
    with pytest.raises(Died):
        WholeWorker(*mortal, "first").take().work()
    Rival(store).run(Add(aggregate_root_id=ID, id="rival", amount=-1))
    second = WholeWorker(transport, store, "second").take("first")
    handled = second.work()

    answers = [decode_result(body) for body in inbox.receive(0)]
    published = transport.pull("events", {0: 0}, limit=100, wait=0)
    copies = [decode_published(body).record.command_id for batch in published for body in batch.bodies]
    assert len(answers) == case.answers
    assert copies.count("c") == case.published
    assert handled == int(case.anew)
    assert transport.committed("g", "commands") == {0: 1}
    assert_history_is_whole(store, ID)
    for answer in answers:
        check_answer(answer, kind, case.anew)

    transport.send("commands", {0: [body]})
    second.work()
    (again,) = [decode_result(body) for body in inbox.receive(0)]
    check_answer(again, kind, case.anew)


def check_answer(answer: CommandResult, kind: str, anew: bool) -> None:
    if anew:
        assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 3)
    else:
        assert (answer.status, answer.version) == FIRST[kind]


def test_every_line_of_the_table_has_its_crash() -> None:
    (rows,) = (
        table for table in tables(DOCS / "discussions" / "write-path.md") if table and table[0][0] == "before it pulled"
    )
    assert [row[0] for row in rows] == list(dict.fromkeys(case.row for case in CASES))
