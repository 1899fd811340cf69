"""The lists and the stream pages of the event browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from enode_django.admin import links, packed, stream_list
from enode_django.domain.metadata import Metadata
from enode_django.eventstore.base import StreamRecord
from enode_django.history import tables
from enode_django.models import EventStream
from enode_django.runtime import make_store
from enode_django.serialization.codec import STREAM, encode_metadata
from enode_django.serialization.plain import pack
from tests.admin.people import HOSTILE, logged_in, without_times

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/eventstream/"
STRANGE = [HOSTILE, "' OR 1=1 --", "\0", "x" * 5_000, "%", "\ud83d", "١", "1e9", "-1", "9" * 5_000, "[]", "{{ 7 }}"]
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


def text_of(client: Client, url: str, **parameters: Any) -> str:
    response = client.get(url, parameters)
    assert response.status_code == 200
    return response.content.decode()


def sequences(client: Client, url: str = LIST, **parameters: Any) -> list[int]:
    return [row.sequence for row in client.get(url, parameters).context["listing"].rows]


def store_rows(count: int, *, type_of: Any = lambda number: "gone.Type") -> list[int]:
    """Store one row a second, each of another aggregate. Return their sequences."""
    nothing = STREAM + pack(([], None))
    times = [BEGIN + timedelta(seconds=number) for number in range(count)]
    make_store().append(
        [
            StreamRecord(f"g{n:04}", 1, f"gc{n:04}", type_of(n), "gone.Do", time, nothing, b"")
            for n, time in enumerate(times)
        ]
    )
    stored = EventStream.objects.filter(command_id__startswith="gc").order_by("command_id")
    return list(stored.values_list("sequence", flat=True))


def begin_sequences_anew() -> None:
    """Restart the sequence. The rollback of the test's transaction takes it back."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_serial_sequence('enode_django_eventstream', 'sequence')")
        cursor.execute(f"ALTER SEQUENCE {cursor.fetchone()[0]} RESTART")


# -- permissions --------------------------------------------------------------------------------------------------


def every_page(stream: EventStream) -> list[str]:
    aggregate = links.aggregate_url(stream.aggregate_root_id)
    return [LIST, f"{LIST}{stream.pk}/change/", aggregate, f"{aggregate}state/?version=1"]


def test_without_a_permission_nothing_of_it_is_seen(client: Client, streams: Sequence[EventStream]) -> None:
    assert all(client.get(url).status_code == 302 for url in every_page(streams[0]))
    logged_in(client)
    assert [client.get(url).status_code for url in every_page(streams[0])] == [403] * 4
    assert "eventstream" not in client.get("/admin/").content.decode()


def test_the_permission_for_contents_alone_shows_nothing(client: Client, streams: Sequence[EventStream]) -> None:
    logged_in(client, "view_payload")
    assert [client.get(url).status_code for url in every_page(streams[0])] == [403] * 4


def test_who_may_view_streams_sees_envelopes_and_no_contents(viewer: Client, streams: Sequence[EventStream]) -> None:
    *pages, state = every_page(streams[1])
    for url in pages:
        text = text_of(viewer, url)
        assert "deposit-1" in text
        assert "bank.Deposit" in text
        for content in ("2.50", "bank.Deposited", "teller-7", "alert(1)"):
            assert content not in without_times(text)
    assert viewer.get(state).status_code == 403
    refused = text_of(viewer, f"{LIST}{streams[2].pk}/change/")
    assert "bank.InsufficientFunds" not in refused


def test_nobody_adds_changes_or_deletes(admin_client: Client, streams: Sequence[EventStream]) -> None:
    page = f"{LIST}{streams[0].pk}/"
    assert admin_client.get(f"{LIST}add/").status_code == 403
    for url in (f"{LIST}add/", f"{page}change/", f"{page}delete/", LIST, *every_page(streams[0])[2:]):
        assert admin_client.post(url, {"version": 7, "post": "yes", "action": "delete_selected"}).status_code == 403
    assert EventStream.objects.count() == 4


# -- the list -----------------------------------------------------------------------------------------------------


def test_pages_go_by_sequence_and_back(reader: Client, streams: Sequence[EventStream]) -> None:
    stored = store_rows(120)
    everything = [*(stream.sequence for stream in streams), *stored][::-1]
    first = reader.get(LIST).context
    assert [row.sequence for row in first["listing"].rows] == everything[:50]
    assert not first["newer"]
    second = reader.get(LIST + first["older"]).context
    assert [row.sequence for row in second["listing"].rows] == everything[50:100]
    third = reader.get(LIST + second["older"]).context
    assert [row.sequence for row in third["listing"].rows] == everything[100:]
    assert not third["older"]
    assert sequences(reader, LIST + third["newer"]) == everything[50:100]
    assert sequences(reader, LIST + second["newer"]) == everything[:50]


def test_the_list_is_filtered_by_types_and_times(reader: Client, streams: Sequence[EventStream]) -> None:
    stored = store_rows(60, type_of=lambda number: "gone.Odd" if number % 2 else "gone.Even")
    assert sequences(reader, type="gone.Odd") == stored[1::2][::-1]
    assert sequences(reader, type="bank.BankAccount", command="bank.OpenAccount") == [
        streams[3].sequence,
        streams[0].sequence,
    ]
    between = {"since": "2030-01-01T00:00:10", "until": "2030-01-01T00:00:20"}
    assert sequences(reader, **between) == stored[10:20][::-1]
    assert sequences(reader, **between, type="gone.Even") == stored[10:20:2][::-1]
    assert sequences(reader, until="2001-01-01") == []


def test_a_filter_that_finds_little_stops_and_offers_to_go_on(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_sequences_anew()  # or the pages go on through all that other tests have used up
    stored = store_rows(100, type_of=lambda number: "gone.Rare" if number in (3, 95) else "gone.Usual")
    monkeypatch.setattr(stream_list, "WINDOW", 20)
    monkeypatch.setattr(stream_list, "PATIENCE", 0)
    page = reader.get(LIST, {"type": "gone.Rare"}).context
    assert page["listing"].looked_to == stored[80]
    found = [row.sequence for row in page["listing"].rows]
    while page["older"]:
        page = reader.get(LIST + page["older"]).context
        found += [row.sequence for row in page["listing"].rows]
    assert found == [stored[95], stored[3]]
    assert sequences(reader, type="gone.Rare", after=stored[60]) == []
    upwards = reader.get(LIST, {"type": "gone.Rare", "after": stored[60]}).context
    assert sequences(reader, LIST + upwards["newer"]) == [stored[95]]


def test_searching_finds_an_aggregate_and_a_command_by_their_whole_ids(
    reader: Client, streams: Sequence[EventStream]
) -> None:
    def found(id: str) -> list[int]:
        return [row.sequence for hits in reader.get(LIST, {"q": id}).context["hits"] for row in hits.rows]

    assert found("a") == [stream.sequence for stream in reversed(streams[:3])]
    assert found("deposit-1") == [streams[1].sequence]
    assert found("deposit-") == []
    assert found(" deposit-1\n") == [streams[1].sequence]
    planted(b"", aggregate_root_id=" a ")
    assert len(found(" a ")) == 1


def test_searching_finds_an_event_and_a_refusal_by_their_ids(viewer: Client, streams: Sequence[EventStream]) -> None:
    def found(id: str) -> list[int]:
        return [row.sequence for hits in viewer.get(LIST, {"q": id}).context["hits"] for row in hits.rows]

    assert found("a/2/0") == [streams[1].sequence]
    assert found("a/9/0") == found("a/refused/deposit-1/x") == []
    assert found(f"a/refused/{streams[2].command_id}") == [streams[2].sequence]
    strange = planted(b"", aggregate_root_id="x/refused/y", version=None, command_id="c/3/0")
    assert found("x/refused/y/refused/c/3/0") == [strange.sequence]


LONG = "n" * 300
NAMED = {
    "correlation_id": "conversation-1",
    "causation_id": "a/1/0",
    "request": "request-1",
    "user": "u-1",
    "more": LONG,
}


@pytest.mark.parametrize("id", ["conversation-1", "a/1/0", "request-1"])
def test_searching_finds_what_names_an_id_in_its_metadata(reader: Client, id: str) -> None:
    planted(b"", pack({**NAMED, "correlation_id": f"{id}-other", "request": f"x{id}", "causation_id": id[1:]}))
    planted(b"", pack({"user": id, "more": id}), aggregate_root_id="not", command_id="not")
    row = planted(b"", encode_metadata(Metadata.from_map(NAMED)), aggregate_root_id="wanted", command_id="wanted")
    for asked in (id, f" {id} "):
        (traces,) = reader.get(LIST, {"q": asked}).context["traces"]
        assert [one.sequence for one in traces.listing.rows] == [row.sequence]
    assert sequences(reader, about=id) == [row.sequence]
    assert "Looked through all streams" in text_of(reader, LIST, q=id)


def test_a_long_id_is_found_in_metadata(reader: Client) -> None:
    id = "é" * 255 + "/12/0"
    row = planted(b"", pack({"causation_id": id}))
    assert sequences(reader, about=id) == [row.sequence]


def test_a_search_in_metadata_is_bounded_and_goes_on(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_sequences_anew()
    old = planted(b"", pack({"request": "wanted"}), aggregate_root_id="old", command_id="old")
    stored = store_rows(100)
    monkeypatch.setattr(stream_list, "WINDOW_OF_CONTENTS", 20)
    monkeypatch.setattr(stream_list, "PATIENCE", 0)
    page = reader.get(LIST, {"q": "wanted"})
    (traces,) = page.context["traces"]
    assert (list(traces.listing.rows), traces.listing.looked_to) == ([], stored[80])
    text = page.content.decode()
    assert f"Looked as far as sequence {stored[80]}." in text
    further = f"?about=wanted&before={stored[80]}"
    assert further.replace("&", "&amp;") in text
    context = reader.get(LIST + further).context
    while context["older"]:
        assert not context["listing"].rows
        context = reader.get(LIST + context["older"]).context
    assert [row.sequence for row in context["listing"].rows] == [old.sequence]


def test_metadata_is_searched_for_who_may_read_it_alone(viewer: Client) -> None:
    planted(b"", pack({"request": "request-1"}))
    page = viewer.get(LIST, {"q": "request-1"})
    assert page.context["traces"] is None
    assert 'name="about"' not in page.content.decode()
    refused = viewer.get(LIST, {"about": "request-1"})
    assert "listing" not in refused.context
    assert "You may not view the contents of event streams" in refused.content.decode()


def test_lists_name_the_events_for_who_may_read_them(reader: Client, streams: Sequence[EventStream]) -> None:
    for parameters in ({}, {"q": "a"}):
        text = text_of(reader, LIST, **parameters)
        for name in ("bank.AccountOpened", "bank.Deposited", "bank.InsufficientFunds"):
            assert f"<td>{name}</td>" in text


def test_events_of_many_bytes_are_not_named(reader: Client) -> None:
    planted(STREAM + pack(([("gone.Small", 1, {}), ("gone.Second", 1, {})], None)), aggregate_root_id="small")
    large = STREAM + pack(([("gone.Large", 1, {"text": "x" * packed.SMALL})], None))
    planted(large, aggregate_root_id="large", command_id="large")
    text = text_of(reader, LIST)
    assert "<td>gone.Small<br>gone.Second</td>" in text
    assert "<td>many bytes of events: see the stream</td>" in text


def test_the_list_is_filtered_by_the_types_of_events_and_refusals(
    reader: Client, streams: Sequence[EventStream]
) -> None:
    assert sequences(reader, event="bank.Deposited") == [streams[1].sequence]
    assert sequences(reader, event="bank.InsufficientFunds") == [streams[2].sequence]
    assert sequences(reader, event="bank.AccountOpened", since="2001-01-01") == [
        streams[3].sequence,
        streams[0].sequence,
    ]
    assert sequences(reader, event="bank.Deposit") == []
    page = text_of(reader, LIST, event="gone.Small")
    assert '<option value="bank.Deposited">' in page
    assert '<option value="bank.InsufficientFunds">' in page
    assert "Streams with more than 64 KB of events are left out." in page


@pytest.mark.parametrize("name", ["gone.Small", "g" * 31, "g" * 32, "gone.É" + "g" * 240])
def test_an_event_is_found_wherever_it_stands_in_its_stream(reader: Client, name: str) -> None:
    other = ("gone.Other", 1, {"text": name, "list": [1, name, "x"]})
    second = planted(STREAM + pack(([other, (name, 70_000, {"at": BEGIN})], "ok")), aggregate_root_id="second")
    planted(STREAM + pack(([other], name)), aggregate_root_id="named", command_id="named")
    planted(STREAM + pack(([(f"{name}s"[-255:], 1, {})], None)), aggregate_root_id="longer", command_id="longer")
    large = STREAM + pack(([(name, 1, {"text": "x" * packed.SMALL})], None))
    planted(large, aggregate_root_id="large", command_id="large")
    assert sequences(reader, event=name) == [second.sequence]


def test_a_filter_by_event_is_for_who_may_read_them_alone(viewer: Client, streams: Sequence[EventStream]) -> None:
    refused = viewer.get(LIST, {"event": "bank.Deposited"})
    assert "listing" not in refused.context
    assert "You may not view the contents of event streams" in refused.content.decode()
    assert 'name="event"' not in text_of(viewer, LIST)


def test_a_stream_leads_to_its_whole_conversation(reader: Client) -> None:
    row = planted(STREAM + pack(([], None)), pack({"correlation_id": "one & all"}))
    assert "?q=one+%26+all" in text_of(reader, f"{LIST}{row.pk}/change/")


def test_the_time_of_a_sequence_is_found_by_halving(streams: Sequence[EventStream]) -> None:
    stored = store_rows(100)
    for number in (0, 1, 42, 99):
        assert tables.sequence_at("default", BEGIN + timedelta(seconds=number)) == stored[number]
    assert tables.sequence_at("default", BEGIN + timedelta(days=1)) == stored[-1] + 1
    assert tables.sequence_at("default", datetime(1, 1, 1, tzinfo=UTC)) == 1


def test_a_large_table_is_estimated_and_not_counted(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    store_rows(60)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE enode_django_eventstream")
    assert reader.get(LIST).context["total"] == "60"
    monkeypatch.setattr(stream_list, "COUNTED", 50)
    with CaptureQueriesContext(connection) as queries:
        assert reader.get(LIST).context["total"] == "about 60"
    assert not [query for query in queries if re.search(r"count\(|offset", query["sql"], re.IGNORECASE)]


@pytest.fixture
def many(db: None) -> None:
    """Store enough rows, with statistics, to give the planner a choice. A third of them belongs to one aggregate."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO enode_django_eventstream (aggregate_root_type, aggregate_root_id, version, command_id,
                                                  command_type, created_at, events, metadata)
            SELECT 'gone.Type', CASE WHEN n < 10000 THEN 'long' ELSE 'many' || n / 10 END,
                   CASE WHEN n % 10 > 0 THEN n END, 'command' || n, 'gone.Do', now(), '', ''
            FROM generate_series(1, 30000) AS n
            """
        )
        cursor.execute("ANALYZE enode_django_eventstream")


@pytest.mark.usefixtures("many")
def test_searches_and_pages_are_answered_by_the_indexes() -> None:
    rows = stream_list.envelopes("default")
    plans = {
        "enode_stream_command": [stream_list.by_command("default", "command77")],
        "enode_stream_version": [stream_list.newest("default", "long"), stream_list.refusals("default", "long")],
        "enode_django_eventstream_pkey": [
            rows.filter(sequence__range=(5_000, 2**63 - 1)).order_by("-sequence")[:51],
            rows.filter(sequence__range=(1, 9_000), command_type="x").order_by("-sequence")[:51],
            rows.filter(packed.has_type("x"), sequence__range=(5_000, 9_000)).order_by("-sequence")[:51],
            rows.filter(packed.metadata_names("x"), sequence__range=(5_000, 9_000)).order_by("-sequence")[:51],
        ],
    }
    for index, queries in plans.items():
        for query in queries:
            plan = query.explain()
            assert index in plan
            assert "Seq Scan" not in plan
            assert "Sort" not in plan


def test_strange_values_give_a_page(reader: Client, streams: Sequence[EventStream]) -> None:
    names = ["q", "shard", "type", "command", "event", "about", "since", "until", "before", "after"]
    for value in STRANGE:
        for query in [*({name: value} for name in names), dict.fromkeys(names, value)]:
            response = reader.get(LIST, QUERY_STRING=encoded(query))
            assert response.status_code == 200, query
            assert HOSTILE not in response.content.decode(errors="replace")
    assert EventStream.objects.count() == 4


def encoded(query: dict[str, str]) -> str:
    return urlencode({key: value.encode(errors="surrogatepass") for key, value in query.items()})


def test_times_at_the_ends_give_a_page(reader: Client, streams: Sequence[EventStream]) -> None:
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59", "2030-02-31"):
        assert reader.get(LIST, {"since": moment}).status_code == 200
        assert reader.get(LIST, {"until": moment}).status_code == 200


def test_a_stream_that_is_not_there_is_not_found(reader: Client) -> None:
    for address in ("x", "0", "-1", "9" * 30, "1%00", "%27--", "1?shard=nowhere", "1/../2"):
        path, _, query = address.partition("?")
        assert reader.get(f"{LIST}{path}/change/?{query}").status_code in (302, 404)


# -- a stream -----------------------------------------------------------------------------------------------------


def test_a_stream_shows_its_events_and_a_refusal_its_reason(reader: Client, streams: Sequence[EventStream]) -> None:
    pages = [text_of(reader, f"{LIST}{stream.pk}/change/") for stream in streams]
    assert "bank.AccountOpened" in pages[0]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[0]
    assert "2.50" in pages[1]
    assert "teller-7" in pages[1]
    assert "Refused: bank.InsufficientFunds" in pages[2]
    assert "the balance is too low" in pages[2]


def planted(events: bytes, metadata: bytes = b"", **fields: Any) -> EventStream:
    envelope = {
        "aggregate_root_type": "gone.Type",
        "aggregate_root_id": "gone",
        "version": 1,
        "command_id": "c",
        "command_type": "gone.Do",
        "created_at": BEGIN,
    }
    stream = EventStream(**{**envelope, **fields}, events=events, metadata=metadata)
    EventStream.unprotected.bulk_create([stream])
    return stream


def test_events_are_readable_when_their_classes_are_gone(reader: Client) -> None:
    fields = {"total": 12, "lines": [{"item": "tea", "price": {"EUR": 3}}], "raw": b"\x00\xff"}
    stream = planted(STREAM + pack(([("gone.Ordered", 7, fields)], "ok")), pack({"user": "u", "causation_id": "x/3/0"}))
    text = text_of(reader, f"{LIST}{stream.pk}/change/")
    for part in ("gone.Ordered", "schema version 7", "lines[0].price.EUR", "tea", "00 ff", "Result"):
        assert part in text
    assert "/aggregates/x/?version=3#causation" in text


BYTES = [
    (b"", b""),
    (b"\xff\x00garbage", b"\xc1"),
    (STREAM, b"\x93\x01\x02\x03"),
    (STREAM + pack(([[HOSTILE, HOSTILE, HOSTILE]], HOSTILE)), pack({HOSTILE: HOSTILE, "user": HOSTILE})),
    (STREAM + pack(([[None, {}, {1: 2, None: [HOSTILE], b"k": HOSTILE}]], {HOSTILE: [HOSTILE]})), b""),
    (STREAM + pack((5, None)), pack({"causation_id": HOSTILE})),
    (b"\x02" + pack((HOSTILE, 1, HOSTILE, {HOSTILE: HOSTILE})), b""),
    (b"\x02" + pack((1, 1, 1, 1)), b""),
    (STREAM + b"\x92\x91\x93\xa1a\x01" + b"\x91" * 400 + b"\xc0\xc0", b"\x91" * 5_000),
    (STREAM + pack(([["big", 1, {"number": 10**5_000, "text": "x" * 50_000}]], None)), b""),
]


def test_whatever_the_bytes_are_there_is_a_page(reader: Client) -> None:
    names = dict.fromkeys(("command_type", "aggregate_root_type"), HOSTILE)
    for number, (events, metadata) in enumerate(BYTES):
        id = f"{HOSTILE}{number}"
        stream = planted(events, metadata, aggregate_root_id=id, command_id=id, **names)
        for url in (LIST, links.search_url(id), f"{LIST}{stream.pk}/change/", links.aggregate_url(id)):
            text = text_of(reader, url)
            assert HOSTILE not in text
            assert "alert(1)" in text
        state = reader.get(links.state_url(id), {"version": 1})
        assert state.status_code == 422
        assert state["Content-Type"] == "application/json"


def test_garbage_says_what_it_is(reader: Client) -> None:
    stream = planted(b"\xffgarbage", b"\xc1")
    text = text_of(reader, f"{LIST}{stream.pk}/change/")
    assert "the events cannot be read" in text
    assert "are not a message of ours" in text
    assert "the metadata cannot be read" in text
