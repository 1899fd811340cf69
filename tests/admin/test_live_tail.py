"""The live tail on the server. `tests.browser.test_live_tail` tests it in a browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import AsyncClient, Client, override_settings

from enode_django.admin.packed import SMALL
from enode_django.api import tail
from enode_django.api.streams import write_cursor
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import BEGINNING
from enode_django.models import EventStream
from enode_django.runtime import make_store
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from tests.admin.people import HOSTILE, logged_in
from tests.integration.running import end_other_sessions
from tests.meta.tree import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/enode_django/eventstream/tail/"
FEED = f"{PAGE}feed/"
START = write_cursor({0: BEGINNING})


class Sent(NamedTuple):
    """The rows of one response, and the cursor at which the browser goes on."""

    rows: Sequence[dict[str, Any]]
    cursor: str

    @property
    def places(self) -> list[tuple[str, int | None]]:
        return [(row["id"], row["version"]) for row in self.rows]


def sent(client: Client, **parameters: str) -> Sent:
    response = client.get(FEED, parameters)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/event-stream"
    text = b"".join(response.streaming_content).decode()
    rows = [json.loads(data) for data in re.findall("^data: (.+)$", text, re.MULTILINE)]
    return Sent(rows, re.findall("^id: (.+)$", text, re.MULTILINE)[-1])


def store(id: str, events: bytes = STREAM + pack(([("gone.Done", 1, {})], None)), metadata: bytes = b"") -> None:
    now = datetime.now(UTC)
    make_store().append([StreamRecord(id, 1, f"c-{id}", "gone.Type", "gone.Do", now, events, metadata)])


# -- permissions --------------------------------------------------------------------------------------------------


def test_without_the_permission_nothing_is_seen(client: Client, streams: Sequence[EventStream]) -> None:
    assert [client.get(url).status_code for url in (PAGE, FEED)] == [302, 302]
    logged_in(client, "view_payload")
    assert [client.get(url).status_code for url in (PAGE, FEED)] == [403, 403]


def test_nobody_posts(admin_client: Client) -> None:
    assert [admin_client.post(url).status_code for url in (PAGE, FEED)] == [403, 403]


def test_who_may_view_streams_sees_envelopes_and_no_contents(viewer: Client, streams: Sequence[EventStream]) -> None:
    found = sent(viewer, cursor=START)
    assert found.places == [("a", 1), ("a", 2), ("a", None), ("b", 1)]
    assert all(row.keys() == {"time", "type", "id", "url", "version", "command"} for row in found.rows)
    assert 'name="event"' not in viewer.get(PAGE).content.decode()
    assert viewer.get(FEED, {"event": "bank.Deposited"}).status_code == 400
    page = viewer.get(PAGE, {"event": "bank.Deposited"})
    assert page.context["feed"] == ""
    assert "You may not view the contents of event streams" in page.content.decode()


def test_who_may_read_payloads_sees_events_and_refusals(reader: Client, streams: Sequence[EventStream]) -> None:
    opened, deposited, refused, _ = sent(reader, cursor=START).rows
    (event,) = opened["events"]
    assert event["name"] == "bank.AccountOpened"
    assert f"owner: {HOSTILE}" in event["text"]
    assert "amount: 2.50" in deposited["events"][0]["text"]
    assert refused["events"][0]["name"] == "bank.InsufficientFunds"
    assert deposited["url"] == "/admin/enode_django/eventstream/aggregates/a/?version=2#causation"
    assert f"command={streams[2].command_id}" in refused["url"]


# -- following ----------------------------------------------------------------------------------------------------


def test_it_begins_now_and_misses_nothing_between_two_responses(reader: Client, streams: Sequence[EventStream]) -> None:
    first = sent(reader)
    assert first.rows == []
    store("new")
    second = reader.get(FEED, headers={"Last-Event-ID": first.cursor})
    assert b'"id": "new"' in b"".join(second.streaming_content)
    assert sent(reader, cursor=first.cursor).places == [("new", 1)]


def test_streams_that_are_not_wanted_are_passed_over(reader: Client, streams: Sequence[EventStream]) -> None:
    store("other")
    assert sent(reader, cursor=START, type="gone.Type").places == [("other", 1)]
    assert sent(reader, cursor=START, id="a", event="bank.Deposited").places == [("a", 2)]
    assert sent(reader, cursor=START, event="bank.InsufficientFunds").places == [("a", None)]
    nothing = sent(reader, cursor=START, type="no.Such")
    assert nothing.rows == []
    assert sent(reader, cursor=nothing.cursor).rows == []
    assert PAGE in reader.get("/admin/enode_django/eventstream/").content.decode()
    assert (
        f'data-feed="{FEED}?type=gone.Type&amp;id=x"'
        in reader.get(PAGE, {"type": "gone.Type", "id": "x"}).content.decode()
    )


def test_more_than_one_look_has_comes_in_one_response(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "AT_ONCE", 2)
    monkeypatch.setattr(tail, "CATCHING_UP", 600.0)
    for number in range(7):
        store(f"s{number}")
    assert len(sent(reader, cursor=START).rows) == 7


def test_what_is_long_is_cut_and_what_is_broken_is_told(reader: Client) -> None:
    store("large", STREAM + pack(([("gone.Large", 1, {"text": "x" * SMALL})], None)))
    store("long", STREAM + pack(([("gone.Long", 1, {"text": "x" * 1_000})] * 30, None)))
    store("broken", b"\xffgarbage", b"\xc1")
    large, long, broken = sent(reader, cursor=START).rows
    assert large["events"] == [{"name": "gone.Large", "text": "many bytes"}]
    assert len(long["events"]) == 11
    assert long["events"][-1]["name"] == "… and 20 more"
    assert len(long["events"][0]["text"]) < 510
    assert "the events cannot be read" in broken["trouble"]


@pytest.mark.parametrize("cursor", ["x", "'--", "\0", "MA", HOSTILE])
def test_a_cursor_that_somebody_made_up_is_refused(reader: Client, cursor: str) -> None:
    answer = reader.get(FEED, {"cursor": cursor})
    assert answer.status_code == 400
    assert HOSTILE not in answer.content.decode()


# -- the contents of a response -----------------------------------------------------------------------------------


@override_settings(ENODE={"API": {"STREAM_SECONDS": 600.0, "STREAM_INTERVAL": 600.0}})
def test_a_response_takes_no_thread_under_wsgi(reader: Client) -> None:
    store("new")
    assert sent(reader, cursor=START).places == [("new", 1)]  # it has ended
    assert connections["default"].connection is None


@override_settings(ENODE={"API": {"STREAM_SECONDS": 600.0, "STREAM_INTERVAL": 0.001, "STREAM_HEARTBEAT": 0.001}})
def test_a_response_lasts_under_asgi_and_holds_no_connection(db: None) -> None:
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_eventstream"))

    async def listen() -> bytes:
        client = AsyncClient()
        await client.aforce_login(user)
        response = await client.get(FEED)
        chunks: AsyncIterator[bytes] = aiter(response.streaming_content)
        assert (await anext(chunks)).startswith(b"retry: ")
        assert await sync_to_async(lambda: connections["default"].connection)() is None
        assert await anext(chunks) == tail.HEARTBEAT
        await asyncio.to_thread(store, "new")
        async for chunk in chunks:
            if chunk != tail.HEARTBEAT:
                return chunk
        return b""

    try:
        assert b'"id": "new"' in asyncio.run(listen())
    finally:
        end_other_sessions()  # those of threads that are gone


WITHOUT = """
import sys
sys.modules["rest_framework"] = None
import django
from django.conf import settings
apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "enode_django"]
settings.configure(INSTALLED_APPS=apps, SECRET_KEY="x")
django.setup()
import enode_django.admin.live_tail
"""


def test_it_needs_no_django_rest_framework() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
