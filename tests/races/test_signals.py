"""The signal of a finished command is sent when its outcome is durable, and errors of its receivers do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from enode_django.bus.results import CommandResult
from enode_django.signals import command_finished
from tests.races.counting import Add, AddWithin, Create, SetTotal
from tests.races.test_publishing import Setting, outcomes


@pytest.fixture
def setting() -> Setting:
    return Setting()


@contextmanager
def receiving(receiver: Callable[..., Any], sender: Any = None) -> Iterator[None]:
    command_finished.connect(receiver, sender=sender)
    try:
        yield
    finally:
        assert command_finished.disconnect(receiver, sender=sender)


def test_stored_outcomes_are_told_at_once_others_after_the_offset_has_moved(setting: Setting) -> None:
    told: list[tuple[type, str, int]] = []

    def note(sender: type, command: Any, result: CommandResult, **_: Any) -> None:
        assert result.command_id == command.id
        told.append((sender, result.command_id, setting.window.committed))

    finished = outcomes(setting)
    for one in finished[1:3]:
        one.envelope.reply_to = ""  # one of each kind is announced although nobody waits for its answer
    with receiving(note):
        setting.publisher.publish(finished[1:])
        assert told == [(Add, "2", 0), (AddWithin, "3", 0)]
        setting.publisher.publish(finished[:1])
    assert told[2:] == [(Create, "0", 0), (SetTotal, "1", 4)]
    assert [answer.command_id for answer in setting.answers()] == ["3", "0"]
    assert setting.publisher.waiting == 0


def test_a_receiver_may_ask_for_one_class_of_commands(setting: Setting) -> None:
    told: list[str] = []

    def note(sender: type, metadata: Any, **_: Any) -> None:
        told.append(sender.__name__)

    with receiving(note, Add):
        setting.publisher.publish(outcomes(setting))
    assert told == ["Add"]


def test_the_error_of_a_receiver_is_logged_and_harms_nothing(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("the receiver is broken")

    with receiving(fail):
        setting.publisher.publish(outcomes(setting))
    assert "the receiver is broken" in caplog.text
    assert setting.window.committed == 4
    assert len(setting.answers()) == 4
    assert setting.publisher.waiting == 0


def test_without_receivers_answers_nobody_waits_for_are_not_kept(setting: Setting) -> None:
    finished = outcomes(setting)
    for one in finished:
        one.envelope.reply_to = ""
    setting.publisher.publish(finished[1:])
    assert setting.publisher.waiting == 0
