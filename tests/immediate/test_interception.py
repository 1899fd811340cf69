"""Middleware and signals in immediate mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction

from enode_django import execute_command
from enode_django.conf import conf
from enode_django.signals import command_finished
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Fill, JarRows, Pour

told: list[str] = []


def telling(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(message: Any, context: Any) -> Any:
        told.append(f"before {type(message).__name__}")
        return handle(message, context)

    return call


def test_middleware_and_receivers_are_called_in_the_process_that_sends(new_process: NewProcess, settings: Any) -> None:
    told.clear()
    backend = {"QUEUE": {"BACKEND": conf().QUEUE.BACKEND}}
    middleware = [f"{__name__}.telling"]
    settings.ENODE = {**backend, "COMMAND_MIDDLEWARE": middleware, "SUBSCRIBER_MIDDLEWARE": middleware}
    new_process(JarRows)

    def note(sender: type, result: Any, **_: Any) -> None:
        told.append(f"{sender.__name__} is a {result.status.value}")

    command_finished.connect(note)
    try:
        execute_command(Pour("a", into="b"))
    finally:
        command_finished.disconnect(note)
    assert sorted(told) == sorted(
        ["before Pour", "before Fill", *["before Filled"] * 2, "Pour is a success", "Fill is a success"]
    )


def test_receivers_are_told_of_what_a_transaction_has_committed(new_process: NewProcess) -> None:
    new_process(JarRows)
    finished: list[str] = []

    def note(command: Fill, **_: Any) -> None:
        finished.append(command.aggregate_root_id)

    command_finished.connect(note)
    try:
        with transaction.atomic():
            execute_command(Fill("a"))
            transaction.set_rollback(True)
        with transaction.atomic():
            execute_command(Fill("b"))
            assert finished == []
    finally:
        command_finished.disconnect(note)
    assert finished == ["b"]
