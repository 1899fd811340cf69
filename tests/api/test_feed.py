"""``GET events/`` and ``GET events/stream/`` show settled events, in one order for everybody."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient, override_settings

from enode_django import execute_command, try_command
from enode_django.api import streams
from enode_django.eventstore.base import StreamRecord
from enode_django.testing.event_store_read_contract import stream
from enode_django.testing.inline import InlineCommandBus
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
from tests.api.calls import Caller
from tests.api.conftest import MakeCaller
from tests.integration.running import end_other_sessions

pytestmark = pytest.mark.django_db(transaction=True)

BRIEF = {"STREAM_SECONDS": 0.001, "STREAM_INTERVAL": 0.001}


@pytest.fixture
def reader(transactional_db: None, bus: InlineCommandBus, caller: MakeCaller) -> Caller:
    execute_command(OpenAccount("a", owner="Ada"))
    try_command(Withdraw("a", amount=Decimal(1), id="refused"))
    execute_command(OpenAccount("b", owner="two\nlines"))
    return caller("view_eventstream", "view_payload")


def deposit(id: str = "a") -> None:
    execute_command(Deposit(id, amount=Decimal(1)))


def is_connected() -> bool:
    return connections["default"].connection is not None


def events_of(chunks: bytes) -> list[dict[str, Any]]:
    """The server-sent events in these bytes, as a browser reads them."""
    found = []
    for block in chunks.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            assert fields["event"] == "stream"
            found.append({"id": fields["id"], **json.loads(fields["data"])})
    return found


def test_pages_join_without_a_gap(reader: Caller) -> None:
    first = reader.get("events/", {"limit": 2}).json()
    assert first["more"]
    assert [(row["aggregate_root_id"], row["version"]) for row in first["results"]] == [("a", 1), ("a", None)]
    assert first["results"][1]["refusal"]["type"] == "bank.InsufficientFunds"
    second = reader.get("events/", {"cursor": first["cursor"]}).json()
    assert [row["aggregate_root_id"] for row in second["results"]] == ["b"]
    assert not second["more"]
    deposit()
    third = reader.get("events/", {"cursor": second["cursor"]}).json()
    assert [row["version"] for row in third["results"]] == [2]


def test_pages_end_where_their_rows_have_many_bytes(reader: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_PIECE", 1)
    monkeypatch.setattr(streams, "PAGE_BYTES", 1)
    pages, cursor, more = [], "", True
    while more:
        page = reader.get("events/", {"cursor": cursor}).json()
        pages += [[(row["aggregate_root_id"], row["version"]) for row in page["results"]]]
        cursor, more = page["cursor"], page["more"]
    assert pages == [[("a", 1)], [("a", None)], [("b", 1)], []]


def test_each_row_says_where_to_go_on(reader: Caller) -> None:
    first = reader.get("events/").json()["results"][0]
    rest = reader.get("events/", {"cursor": first["cursor"]}).json()["results"]
    assert [row["version"] for row in rest] == [None, 1]


def test_payloads_are_for_those_who_may_see_them(reader: Caller, caller: MakeCaller) -> None:
    rows = caller("view_eventstream", name="lister").get("events/").json()["results"]
    assert len(rows) == 3
    assert not any({"events", "metadata", "refusal"} & row.keys() for row in rows)


@override_settings(ENODE={"API": BRIEF})
def test_a_stream_goes_on_where_the_last_one_ended(reader: Caller) -> None:
    beginning = reader.get("events/", {"limit": 1}).json()["results"][0]["cursor"]
    response = reader.get("events/stream/", {"cursor": beginning}, Accept="text/event-stream")
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-store"
    rows = events_of(b"".join(response.streaming_content))
    assert [(row["aggregate_root_id"], row["version"]) for row in rows] == [("a", None), ("b", 1)]
    assert rows[1]["events"][0]["fields"]["owner"] == "two\nlines"
    deposit()
    response = reader.get("events/stream/", {"cursor": beginning}, **{"Last-Event-ID": rows[-1]["id"]})
    assert [row["version"] for row in events_of(b"".join(response.streaming_content))] == [2]


@override_settings(ENODE={"API": {**BRIEF, "STREAM_SECONDS": 20.0, "STREAM_HEARTBEAT": 0.001}})
def test_a_stream_begins_now_and_tells_what_comes_and_that_it_lives(reader: Caller) -> None:
    chunks: Iterator[bytes] = iter(reader.get("events/stream/").streaming_content)
    assert next(chunks).startswith(b"retry: ")
    assert next(chunks) == b": still here\n\n"
    deposit()
    (row,) = events_of(next(chunk for chunk in chunks if not chunk.startswith(b":")))
    assert (row["aggregate_root_id"], row["version"]) == ("a", 2)


@override_settings(ENODE={"API": BRIEF})
def test_a_stream_in_which_nothing_happened_goes_on_where_it_began(reader: Caller) -> None:
    """An event that is stored until the client reconnects is not missed: a browser remembers an id without data,
    too."""
    (begun,) = re.findall(rb"^id: (.+)$", b"".join(reader.get("events/stream/").streaming_content), re.MULTILINE)
    deposit()
    response = reader.get("events/stream/", **{"Last-Event-ID": begun.decode()})
    assert [row["version"] for row in events_of(b"".join(response.streaming_content))] == [2]


@override_settings(ENODE={"API": {**BRIEF, "STREAM_SECONDS": 20.0, "STREAM_HEARTBEAT": 0.001}})
def test_a_stream_holds_no_connection_while_it_waits(reader: Caller) -> None:
    chunks: Iterator[bytes] = iter(reader.get("events/stream/").streaming_content)
    assert [next(chunks)[:1] for _ in range(3)] == [b"r", b":", b":"]
    assert connections["default"].connection is None


@override_settings(ENODE={"API": {**BRIEF, "STREAM_SECONDS": 20.0, "STREAM_HEARTBEAT": 0.001}})
def test_under_asgi_a_stream_needs_no_thread_and_ends_with_its_client(reader: Caller) -> None:
    async def listen(user: User) -> list[dict[str, Any]]:
        client = AsyncClient()
        await client.aforce_login(user)
        response = await client.get("/api/events/stream/")
        assert response.is_async
        chunks: AsyncIterator[bytes] = aiter(response.streaming_content)
        assert await sync_to_async(is_connected)()  # the thread that answered
        assert (await anext(chunks)).startswith(b"retry: ")
        assert not await sync_to_async(is_connected)()
        await anext(chunks)
        await asyncio.to_thread(deposit, "b")
        async for chunk in chunks:
            if not chunk.startswith(b":"):
                break
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        waiting.cancel()  # Django does this when the client is gone
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
        return events_of(chunk)

    assert reader.user is not None
    try:
        rows = asyncio.run(listen(reader.user))
    finally:
        end_other_sessions()  # those of threads that are gone
    assert [(row["aggregate_root_id"], row["version"]) for row in rows] == [("b", 2)]


def test_large_rows_behind_many_small_ones_do_not_fill_the_memory() -> None:
    """How large the next rows are is not known before they are read."""
    rows = [stream("a", 1)._replace(events=bytes(size)) for size in [10] * 60 + [1_000_000] * 300]
    read: list[StreamRecord] = []

    def read_next(most: int) -> Sequence[StreamRecord]:
        found = rows[len(read) : len(read) + most]
        read.extend(found)
        return found

    assert streams.read_in_pieces(read_next, 500, 4_000_000)
    assert 4_000_000 <= sum(len(record.events) for record in read) <= 51_000_000


def test_large_rows_alone_are_read_in_small_pieces() -> None:
    row = stream("a", 1)._replace(events=bytes(1_000_000))
    read: list[int] = []

    def read_next(most: int) -> Sequence[StreamRecord]:
        read.append(most)
        return [row] * most

    assert streams.read_in_pieces(read_next, 500, 16_000_000)
    assert sum(read) <= 17
