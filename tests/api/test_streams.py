"""The feed of several shards, page by page."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime

from enode_django.api import openapi, problems, streams
from enode_django.api.streams import read_cursor, read_feed, write_cursor
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore


class Shard(MemoryEventStore):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    @property
    def number(self) -> int:
        return self._number

    def store(self, *ids: str) -> None:
        self.append([StreamRecord(id, 1, f"c-{id}", "t", "c", datetime.now(UTC), b"", b"") for id in ids])


def test_pages_of_several_shards_show_every_row_once_and_starve_none() -> None:
    shards = [Shard(3), Shard(8)]
    shards[0].store(*"abcdefg")
    shards[1].store(*"xy")
    places, pages = {}, []
    for _ in range(10):
        part = read_feed(shards, places, 4)
        pages.append([row.record.aggregate_root_id for row in part.rows])
        places = dict(read_cursor(write_cursor(part.places)))
        if not part.more:
            break
    assert pages == [["a", "b", "x", "y"], ["c", "d"], ["e", "f"], ["g"]]
    shards[1].store("z")
    assert [row.record.aggregate_root_id for row in read_feed(shards, places, 1).rows] == ["z"]


def test_each_row_leads_to_the_next_one_of_any_shard() -> None:
    shards = [Shard(0), Shard(1)]
    shards[0].store("a", "b")
    shards[1].store("c", "d")
    rows = read_feed(shards, {}, 10).rows
    for number, row in enumerate(rows):
        after = read_feed(shards, read_cursor(row.cursor), 10).rows
        assert [each.record.aggregate_root_id for each in after] == list("abcd"[number + 1 :])


def test_the_examples_in_docstrings_hold() -> None:
    for module in (streams, problems, openapi):
        done = doctest.testmod(module)
        assert done.attempted
        assert not done.failed
