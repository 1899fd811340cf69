from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import TestCase

from enode_django import (
    VersionMismatch,
    aexecute_command,
    asend_command,
    execute_command,
    send_command,
    send_command_on_commit,
    send_commands,
    try_command,
)
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandTimeout, DefinitionError, InvalidField
from enode_django.runtime import use_bus
from enode_django.testing import given, inline
from sample_project.notes.domain import ChangeTitle, CreateNote, Note, NoteCreated, TitleChanged
from tests.unit.commanding.desk import Desk

CHANGE = ChangeTitle("n", title="two", id="c")


def execute(version: int | None) -> None:
    with pytest.raises(CommandTimeout):
        execute_command(CHANGE, timeout=0.001, expected_version=version)


def aexecute(version: int | None) -> None:
    with pytest.raises(CommandTimeout):
        asyncio.run(aexecute_command(CHANGE, timeout=0.001, expected_version=version))


def send_on_commit(version: int | None) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True):
        send_command_on_commit(CHANGE, expected_version=version)


Send = Callable[[int | None], None]
WAYS: dict[str, Send] = {
    "send": lambda version: send_command(CHANGE, expected_version=version),
    "asend": lambda version: asyncio.run(asend_command(CHANGE, expected_version=version)),
    "execute": execute,
    "aexecute": aexecute,
}


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    with use_bus(desk.bus):
        yield desk
    desk.close()


ON_COMMIT = pytest.param(send_on_commit, marks=pytest.mark.django_db, id="send on commit")


@pytest.mark.parametrize("send", [*(pytest.param(way, id=name) for name, way in WAYS.items()), ON_COMMIT])
def test_the_expected_version_travels_with_the_command(desk: Desk, send: Send) -> None:
    for version in (7, 0, None):
        send(version)
        assert desk.received().expected_version == version


def test_each_of_many_commands_can_have_a_version_of_its_own(desk: Desk) -> None:
    send_commands([(CHANGE, 7), CHANGE, (CHANGE, None), (CHANGE, 0)])
    assert [desk.received().expected_version for _ in range(4)] == [7, None, None, 0]
    for wrong in ((CHANGE, -1), (CHANGE, "7")):
        with pytest.raises(InvalidField, match="is not a version"):
            send_commands([CHANGE, wrong])  # type: ignore[list-item]
    for other in ((CHANGE,), (7, CHANGE), (CHANGE, 1, 2)):
        with pytest.raises(DefinitionError, match="is not a command"):
            send_commands([other])  # type: ignore[list-item]


def test_one_of_many_commands_is_refused_alone() -> None:
    with inline(MemoryEventStore()) as bus:
        execute_command(CreateNote("n", title="one"))
        late = ChangeTitle("n", title="late")
        send_commands([(CHANGE, 1), (late, 1), (ChangeTitle("n", title="three"), 2)])
    assert [result.version for result in bus.results] == [1, 2, None, 3]
    assert bus.results[2].error_type == "enode.VersionMismatch"


@pytest.mark.parametrize("version", [-1, 2**63, True, "1", 1.0])
@pytest.mark.parametrize("send", [WAYS["send"], WAYS["asend"], send_on_commit], ids=["send", "asend", "on_commit"])
def test_what_can_be_no_version_is_refused_before_anything_is_sent(desk: Desk, send: Send, version: Any) -> None:
    with pytest.raises(InvalidField, match=r"is not a version; give that of the aggregate"):
        send(version)
    with pytest.raises(InvalidField, match=r"is not a version; give that of the aggregate"):
        execute_command(CHANGE, expected_version=version)
    assert desk.transport.pull("commands", {0: 0}, limit=1, wait=0) == []


def test_expected_versions_hold_inline_and_in_scenarios() -> None:
    with inline(MemoryEventStore()):
        created = execute_command(CreateNote("n", title="one"), expected_version=0)
        late = try_command(CHANGE, expected_version=2)
    assert created.version == 1
    assert (late.error_type, late.error_fields) == ("enode.VersionMismatch", {"expected_version": 2, "version": 1})
    scenario = given(Note, "n", NoteCreated(title="one"))
    scenario.when(CHANGE, expected_version=0).then_refused(VersionMismatch, expected_version=0, version=1)
    scenario.when(ChangeTitle("n", title="two"), expected_version=1).then(TitleChanged(title="two"))
