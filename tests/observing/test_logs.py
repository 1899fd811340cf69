from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from pythonjsonlogger.json import JsonFormatter

from enode_django import Command
from enode_django.commanding.context import CommandContext
from enode_django.domain.metadata import Metadata, metadata
from enode_django.domain.origin import handled_command
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import running_subscriber
from enode_django.middleware import EnodeMiddleware
from enode_django.processors.logs import FORMAT, AddContext, AddContextText, RecordFormatter
from enode_django.serialization.codec import encode_metadata

logger = logging.getLogger("tests.observing.logs")


class Log(Command):
    type_name = "tests.observing.Log"


class Console:
    """A handler of log records, with a filter and a format."""

    def __init__(self, filter: logging.Filter, formatter: logging.Formatter) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.addFilter(filter)
        self.handler.setFormatter(formatter)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def as_json() -> Iterator[Console]:
    fields = ["message", "command_id", "aggregate_root_id", "subscriber", "correlation_id"]
    console = Console(AddContext(), JsonFormatter(fields))
    logger.addHandler(console.handler)
    yield console
    logger.removeHandler(console.handler)


@pytest.fixture
def as_text() -> Iterator[Console]:
    console = Console(AddContextText(), logging.Formatter(FORMAT.split(": ")[1]))
    logger.addHandler(console.handler)
    yield console
    logger.removeHandler(console.handler)


@pytest.fixture
def handling() -> Iterator[None]:
    command = Log("a-1", id="c-1")
    context = CommandContext(command, None, lambda id: None, encode_metadata(Metadata(correlation_id="r-1")))
    token = handled_command.set(context)
    yield
    handled_command.reset(token)


@pytest.fixture
def following() -> Iterator[None]:
    token = running_subscriber.set(subscribers.get("bank.Ledger"))
    yield
    running_subscriber.reset(token)


def said(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def test_records_of_a_command_handler_name_command_aggregate_and_request(as_json: Console, handling: None) -> None:
    logger.warning("low")
    known = {"command_id": "c-1", "aggregate_root_id": "a-1", "correlation_id": "r-1"}
    assert [said(record) for record in as_json.objects] == [{"message": "low", **known}]


def test_records_of_a_subscriber_name_it(as_json: Console, following: None) -> None:
    with metadata(correlation_id="r-2"):
        logger.warning("parked", extra={"aggregate_root_id": "a-2"})
    known = {"subscriber": "bank.Ledger", "aggregate_root_id": "a-2", "correlation_id": "r-2"}
    assert [said(record) for record in as_json.objects] == [{"message": "parked", **known}]


def test_what_a_record_says_itself_stays(as_json: Console, handling: None) -> None:
    logger.warning("other", extra={"command_id": "c-9"})
    assert as_json.objects[0]["command_id"] == "c-9"


def test_records_of_a_request_have_its_id_without_asking_who_the_user_is(as_json: Console) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        logger.warning("hello")
        return HttpResponse()

    class Request(HttpRequest):
        @property
        def user(self) -> Any:
            raise AssertionError("this takes a query, and queries are logged")

    request = Request()
    request.META["HTTP_X_REQUEST_ID"] = "r-3"
    EnodeMiddleware(view)(request)
    assert said(as_json.objects[0]) == {"message": "hello", "correlation_id": "r-3"}


def test_outside_of_all_that_nothing_is_added(as_json: Console, as_text: Console) -> None:
    logger.warning("hello")
    assert said(as_json.objects[0]) == {"message": "hello"}
    assert as_text.lines == ["hello"]


def test_metadata_that_cannot_be_read_keeps_no_record_from_being_written(as_json: Console) -> None:
    token = handled_command.set(CommandContext(Log("a"), None, lambda id: None, b"\xff"))
    logger.warning("still")
    handled_command.reset(token)
    assert as_json.objects[0]["message"] == "still"


def test_the_console_shows_it_behind_the_message(as_text: Console, handling: None) -> None:
    logger.warning("low")
    assert as_text.lines == ["low [command_id=c-1 aggregate_root_id=a-1 correlation_id=r-1]"]


def test_an_id_begins_no_line_of_its_own(as_text: Console) -> None:
    logger.warning("low", extra={"aggregate_root_id": "a\n2026 ERROR all is lost\x1b[2J"})
    assert as_text.lines == [r"low [aggregate_root_id='a\n2026 ERROR all is lost\x1b[2J']"]


def test_no_text_from_outside_looks_like_another_record_on_the_console() -> None:
    formatter = RecordFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%s waits", ("a\rERROR lost\n\x1b[2JERROR é\t",), None)
    assert formatter.format(record).split("\n") == [r"WARNING a\rERROR lost", "  \\x1b[2JERROR é\t waits"]
    try:
        raise ValueError("no\nERROR all is lost")
    except ValueError:
        record.exc_info = sys.exc_info()
    _, *others = formatter.format(record).split("\n")
    assert "ERROR all is lost" in "".join(others)
    assert all(line.startswith("  ") for line in others)
