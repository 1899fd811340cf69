"""Beginning a rebuild and giving it up do not block readers of tables that its foreign keys point to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from enode_django.exceptions import TablesInUse
from enode_django.models import Checkpoint, Rebuild
from enode_django.rebuilding import clearing
from enode_django.rebuilding.clearing import changing
from enode_django.rebuilding.comparing import one_moment
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.target import Target
from tests.following.harness import Harness
from tests.integration.store_sessions import Call, bare_session, wait_until
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Postings
from tests.rebuilding.histories import follow, nothing, some_history
from tests.rebuilding.tables import asked, sql


@pytest.fixture
def referring(postings: Harness) -> Iterator[Harness]:
    """A harness whose table of postings has a foreign key to a table that no projection writes."""
    some_history(postings, "a", "b")
    follow()
    sql(
        "CREATE TABLE referred_to (id integer PRIMARY KEY)",
        "ALTER TABLE rebuilding_posting ADD refers integer REFERENCES referred_to",
    )
    yield postings
    for name in schemas():
        sql(f'DROP SCHEMA "{name}" CASCADE')
    sql("ALTER TABLE rebuilding_posting DROP refers", "DROP TABLE referred_to")


def read_and_write() -> None:
    """Read and write the table ``referred_to``. Raise if it stays locked for a minute."""
    with bare_session() as session:
        session.execute("SET lock_timeout = '60s'")
        session.execute("SELECT count(*) FROM referred_to")
        session.execute("INSERT INTO referred_to VALUES (1) ON CONFLICT DO NOTHING")


def _begin_the_next() -> object:
    return Target.of(Postings.name).begin()


def _give_up() -> object:
    target = Target.of(Postings.name)
    return target.abandon(target.rebuilds().get(state="building"))


@pytest.mark.parametrize("clear", [_begin_the_next, _give_up])
def test_others_read_and_write_while_checkpoints_are_deleted(referring: Harness, clear: Callable[[], object]) -> None:
    rebuilt, shadow = Target.of(Postings.name).begin()
    for id in ("a", "b"):
        Checkpoint.objects.create(
            subscriber=Postings.name, generation=shadow.generation, aggregate_root_id=id, version=1
        )
    with bare_session() as session:
        session.execute("SELECT FROM enode_django_checkpoint WHERE generation = 1 FOR UPDATE")
        call = Call(clear)
        wait_until(lambda: asked("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])
        read_and_write()
    call.result()
    assert not Checkpoint.objects.filter(generation=shadow.generation).exists()
    assert Rebuild.objects.get(pk=rebuilt.pk).state == "abandoned"
    assert len(schemas()) == (clear is _begin_the_next)


def test_who_reads_for_long_is_waited_for_without_keeping_others_from_reading(referring: Harness) -> None:
    """A pending lock blocks later readers, so the rebuild waits for it in short attempts."""
    Target.of(Postings.name).begin()
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'referred_to'::regclass"
    with bare_session() as session:
        session.execute("SELECT count(*) FROM referred_to")
        call = Call(_give_up)
        wait_until(lambda: asked(waits) != [(0,)])
        read_and_write()
    call.result()
    assert schemas() == []


def test_what_could_not_be_dropped_is_dropped_by_the_next_rebuild(
    referring: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    Target.of(Postings.name).begin()
    with monkeypatch.context() as patch, bare_session() as session:
        patch.setattr(clearing, "ATTEMPTS", 2)
        patch.setattr(clearing, "SHORT_LOCK_TIMEOUT", "20ms")
        session.execute("SELECT count(*) FROM referred_to")
        with pytest.raises(TablesInUse, match=r"tables that those of rebuilding.postings point to, or what"):
            _give_up()
    assert (len(schemas()), Rebuild.objects.get().state) == (1, "abandoned")
    assert rebuild(Postings.name, InProcess(), nothing).is_swapped
    assert schemas() == [Target.of(Postings.name).shadow(0).schema]


@pytest.mark.parametrize("within", [partial(changing, name="rebuilding.postings"), one_moment])
def test_the_time_limit_of_the_users_statements_does_not_end_what_takes_long(
    postings: Harness, within: Callable[[str], AbstractContextManager[None]]
) -> None:
    sql("SET statement_timeout = '1s'")
    try:
        with within("default"):
            assert asked("SELECT 1 FROM pg_sleep(1.5)") == [(1,)]
        assert asked("SHOW statement_timeout") == [("1s",)]
    finally:
        sql("RESET statement_timeout")
