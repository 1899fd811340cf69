from __future__ import annotations

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django import AggregateId, Command
from enode_django.exceptions import InvalidField, InvalidId
from enode_django.ids import check_id, new_id


class NamesAnother(Command):
    type_name = "ids.NamesAnother"
    another: AggregateId


@pytest.mark.parametrize("id", ["a", "é", "a\nb", "x" * 255, "1/2"])
def test_a_field_for_ids_takes_every_id(id: str) -> None:
    assert NamesAnother("one", another=id).another == check_id(id)


@pytest.mark.parametrize(
    ("id", "why"), [("", "length of at least 1"), ("x" * 256, "at most 255"), ("a\0", "pattern"), (5, "str")]
)
def test_a_field_for_ids_takes_nothing_else(id: str, why: str) -> None:
    with pytest.raises(InvalidField, match=rf"NamesAnother\.another.*{why}"):
        NamesAnother("one", another=id)
    with pytest.raises(InvalidId):
        check_id(id)


def test_new_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    for id in (ids[0], ids[-1]):
        parsed = uuid.UUID(id)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, id)
        assert 0 <= (parsed.int >> 80) - before < 60_000


def test_threads_make_different_ids() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [id for ids in pool.map(lambda _: [new_id() for _ in range(2_000)], range(8)) for id in ids]
    assert len(set(made)) == 16_000


def test_forked_child_makes_ids_of_its_own_even_if_a_thread_held_the_lock() -> None:
    from enode_django.ids import _clock

    read, write = os.pipe()
    with _clock.lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover (the child)
            os.write(write, new_id().encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as child:
        theirs = child.read()
    os.waitpid(pid, 0)
    assert uuid.UUID(theirs).version == 7
    assert theirs != new_id()


def test_subclass_of_str_becomes_a_string() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "something else"

    assert type(check_id(Text("a"))) is str
    assert check_id(Text("a")) == "a"
