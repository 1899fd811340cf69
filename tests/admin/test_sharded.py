"""The event browser over an event store of two databases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import OperationalError, connections
from django.test import Client, override_settings
from pytest_django import DjangoDbBlocker

from enode_django.admin import links
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.dead_letters import DeadLetter, PostgresDeadLetters
from enode_django.history import causation
from enode_django.models import DeadLetter as DeadLetterRow
from enode_django.models import EventStream, OperatorAction
from enode_django.operating.dead_letters import Choice, discard
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from tests.admin.people import logged_in
from tests.integration.sharded import ALIASES, empty, id_in, opened, shard_databases, sharded_settings, sharded_store
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db(transaction=True)
LIST = "/admin/enode_django/eventstream/"
FIRST, SECOND = id_in(0), id_in(1)


@pytest.fixture(scope="module")
def databases(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, str]]:
    with django_db_blocker.unblock(), shard_databases() as names:
        yield names


@pytest.fixture(autouse=True)
def stored(databases: dict[str, str], transactional_db: None) -> Iterator[None]:
    """Store an aggregate in each shard. The first causes the second."""
    nothing = STREAM + pack(([("gone.Done", 1, {})], None))
    causes = {FIRST: b"", SECOND: pack({"causation_id": f"{FIRST}/1/0", "correlation_id": "c0"})}
    with opened(databases), sharded_settings():
        empty()
        records = [
            StreamRecord(id, 1, f"c{place}", "gone.Type", "gone.Do", datetime.now(UTC), nothing, causes[id])
            for place, id in enumerate((FIRST, SECOND))
        ]
        for record in records:
            sharded_store().append([record])
        yield


@pytest.fixture
def reader(client: Client) -> Client:
    return logged_in(client, "view_eventstream", "view_payload")


def listed(client: Client, **parameters: str) -> Sequence[str]:
    return [row.aggregate_root_id for row in client.get(LIST, parameters).context["listing"].rows]


def test_each_shard_has_its_list(reader: Client) -> None:
    assert listed(reader) == [FIRST]
    assert listed(reader, shard=ALIASES[1]) == [SECOND]
    assert "listing" not in reader.get(LIST, {"shard": "default"}).context


def test_a_search_looks_where_the_aggregate_is_and_for_a_command_everywhere(reader: Client) -> None:
    for id, command in ((FIRST, "c0"), (SECOND, "c1")):
        for wanted in (id, command):
            hits = reader.get(LIST, {"q": wanted}).context["hits"]
            assert [(hit.alias, row.aggregate_root_id) for hit in hits for row in hit.rows] == [
                (ALIASES[id == SECOND], id)
            ]


def test_metadata_are_searched_in_each_shard(reader: Client) -> None:
    page = reader.get(LIST, {"q": "c0"})
    found = {one.alias: [row.aggregate_root_id for row in one.listing.rows] for one in page.context["traces"]}
    assert found == {ALIASES[0]: [], ALIASES[1]: [SECOND]}
    assert [hit.alias for hit in reader.get(LIST, {"q": f"{SECOND}/1/0"}).context["hits"] if hit.rows] == [ALIASES[1]]
    assert listed(reader, shard=ALIASES[1], about="c0") == [SECOND]


def test_pages_come_from_the_shard_that_has_the_aggregate(reader: Client) -> None:
    text = reader.get(links.aggregate_url(SECOND)).content.decode()
    assert f"in {ALIASES[1]}" in text
    stream = reader.get(LIST, {"shard": ALIASES[1]}).context["listing"].rows[0]
    assert SECOND in reader.get(links.stream_url(stream.sequence, ALIASES[1])).content.decode()


def test_causes_are_found_across_the_shards() -> None:
    assert [step.aggregate_root_id for step in causation(FIRST, 1).descendants] == [SECOND]
    assert [step.aggregate_root_id for step in causation(SECOND, 1).ancestors] == [FIRST]


@contextmanager
def away(alias: str) -> Iterator[None]:
    connections[alias].close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections[alias].settings_dict, "NAME", "there_is_none")
        yield


def test_a_shard_that_is_away_is_said_to_be_away(reader: Client) -> None:
    with away(ALIASES[1]):
        response = reader.get(LIST, {"shard": ALIASES[1]})
        assert response.status_code == 503
        assert "cannot be read at the moment" in response.content.decode()
        assert listed(reader) == [FIRST]


def test_a_shard_that_is_away_hides_nothing_of_the_others(reader: Client) -> None:
    with away(ALIASES[0]):
        assert f'href="{LIST}?shard={ALIASES[1]}"' in reader.get(LIST).content.decode()
        response = reader.get(LIST, {"q": "c1"})
        assert [(hit.is_away, len(hit.rows)) for hit in response.context["hits"]] == [(True, 0), (False, 1)]
        assert "This shard cannot be read" in response.content.decode()
        page = reader.get(links.aggregate_url(SECOND))
        assert [row.stream.version for row in page.context["timeline"]] == [1]
        assert page.context["causation"].trouble
        assert reader.get(links.aggregate_url(FIRST)).status_code == 503
        with away(ALIASES[1]):
            assert reader.get(LIST, {"q": "c1"}).status_code == 503


def test_dead_letters_lie_in_the_shards_of_their_aggregates_each_with_its_list(client: Client) -> None:
    for alias, id in zip(ALIASES, (FIRST, SECOND), strict=True):
        letter = DeadLetter(id, "c", id, "gone.Do", "commands", 0, 0, "KeyError", "", b"", False)
        PostgresDeadLetters(alias).keep([letter])
    logged_in(client, "view_deadletter")

    def found(**parameters: str) -> list[str]:
        listing = client.get("/admin/enode_django/deadletter/", parameters).context["cl"]
        return [row.aggregate_root_id for row in listing.result_list]

    assert found() == [FIRST]
    assert found(database=ALIASES[1]) == [SECOND]
    assert [(alias, [row.aggregate_root_id for row in rows]) for alias, rows in Choice(["c"]).letters()] == [
        (ALIASES[0], [FIRST]),
        (ALIASES[1], [SECOND]),
    ]
    assert discard(Choice(["c"])) == 2


class LosesShard(MemoryTransport):
    """At the second send, the second shard is lost."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.create_topic("commands", 1)
        self._sends = 0

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        self._sends += 1
        if self._sends == 2:
            connections[ALIASES[1]].close()
            connections[ALIASES[1]].settings_dict["NAME"] = "there_is_none"
        return super().send(topic, bodies, **options)


def test_dead_letters_that_were_sent_before_their_shard_was_lost_are_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.operating.dead_letters.AT_ONCE", 1)
    for number in range(2):
        letter = DeadLetter(f"{number}", f"{number}", SECOND, "gone.Do", "commands", 0, 0, "KeyError", "", b"", False)
        PostgresDeadLetters(ALIASES[1]).keep([letter])
    logged_in(client, "change_deadletter")
    client.raise_request_exception = False
    keys = list(DeadLetterRow.objects.using(ALIASES[1]).order_by("pk").values_list("pk", flat=True))
    chosen = {"action": "requeue", "_selected_action": keys}
    queue = {"BACKEND": f"{__name__}.LosesShard", "QUEUES_PER_TOPIC": 1}
    place = connections[ALIASES[1]].settings_dict
    enode = {**settings.ENODE, **REAL_QUEUE, "QUEUE": queue}
    with pytest.MonkeyPatch.context() as patch, override_settings(ENODE=enode):
        patch.setitem(place, "NAME", place["NAME"])  # to be set back
        response = client.post(f"/admin/enode_django/deadletter/?database={ALIASES[1]}", chosen)
    assert response.status_code == 500
    (left,) = DeadLetterRow.objects.using(ALIASES[1]).values_list("command_id", flat=True)
    (gone,) = {"0", "1"} - {left}
    assert [action.object_id for action in OperatorAction.objects.all()] == [gone]
    assert LogEntry.objects.count() == 1


PAGES = ["deadletter/", *(f"deadletter/1/{page}/" for page in ("change", "history", "delete")), "uniquevalue/"]


@pytest.mark.parametrize("page", PAGES)
def test_a_list_of_a_shard_that_is_away_says_so_and_leads_to_the_others(client: Client, page: str) -> None:
    logged_in(client, "view_deadletter", "view_uniquevalue")
    url = f"/admin/enode_django/{page}"
    with away(ALIASES[1]):
        response = client.get(url, {"database": ALIASES[1]})
        assert response.status_code == 503
        text = response.content.decode()
        assert f"The database {ALIASES[1]} cannot be read at the moment" in text
        assert f'<a href="/admin/enode_django/{page.partition("/")[0]}/">{ALIASES[0]}</a>' in text
        assert "there_is_none" not in text, "what the error says is for who may view payloads"
        assert client.get(url).status_code in (200, 302, 403)


def test_a_shard_that_is_away_hides_nothing_of_the_queue(client: Client) -> None:
    logged_in(client, "view_topic")
    with override_settings(ENODE={**settings.ENODE, "QUEUE": {"BACKEND": f"{__name__}.memory"}}), away(ALIASES[1]):
        response = client.get("/admin/enode_django/topic/")
    assert response.status_code == 200
    assert [row[2] for row in response.context["letters"]] == [None]
    assert "unknown: their database is away" in response.content.decode()


def memory(location: str) -> MemoryTransport:
    return MemoryTransport()


def test_an_error_of_a_database_that_is_there_is_not_taken_for_its_absence(client: Client) -> None:
    logged_in(client, "view_deadletter")
    other = connections[ALIASES[0]].copy()
    with contextlib.closing(other), connections[ALIASES[0]].cursor() as cursor:
        other.set_autocommit(False)
        other.cursor().execute("LOCK TABLE enode_django_deadletter")
        cursor.execute("SET lock_timeout = '50ms'")
        with pytest.raises(OperationalError, match="lock timeout"):
            client.get("/admin/enode_django/deadletter/")
        cursor.execute("RESET lock_timeout")


@pytest.mark.parametrize(("page", "status"), [("history", 404), ("delete", 403)])
def test_a_stream_has_no_page_of_changes(client: Client, page: str, status: int) -> None:
    """Django would look for its row in the router's database."""
    superuser = User.objects.create_superuser("root")
    client.force_login(superuser)
    sequence = EventStream.objects.using(ALIASES[1]).get().sequence
    assert client.get(f"{LIST}{sequence}/{page}/").status_code == status
    assert client.post(f"{LIST}{sequence}/{page}/", {"post": "yes"}).status_code == status
