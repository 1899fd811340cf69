"""Rebuilds that crash, or whose session ends, at any stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection, connections

from enode_django.eventing.subscribers import Subscriber
from enode_django.models import Checkpoint
from enode_django.rebuilding import swapping
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.target import Target
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.integration.store_sessions import Call, bare_session, wait_until
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balances, Postings
from tests.rebuilding.histories import (
    amounts,
    balances,
    follow,
    nothing,
)
from tests.rebuilding.histories import (
    postings as posted,
)
from tests.rebuilding.tables import asked, someone_waits_for, sql

BOTH = pytest.mark.parametrize("cls", [Postings, Balances])


class Crash(BaseException):
    """Ends a rebuild before it can clean up."""


STAGES = ["replay", "catch up", "check a sample", "compare", "swap"]


@BOTH
@pytest.mark.parametrize("stage", STAGES)
def test_after_a_crash_at_any_stage_everything_is_as_it_was_and_the_next_run_starts_clean(
    followed: Harness, cls: type[Subscriber], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoint.objects.filter(generation=0).order_by("pk").values_list()
    before = (posted(), balances(), list(checkpoints.all()))
    _crash_at(monkeypatch, followed, cls, stage)
    assert (posted(), balances()) == before[:2]
    assert schemas() != [], "or it was no crash"
    kept = 1 if stage == "swap" else 0  # it could still be swapped
    rebuilt = rebuild(cls.name, InProcess(), nothing, compare_only=True)
    assert rebuilt.comparison.is_equal
    assert (posted(), balances(), list(checkpoints.all())) == before
    assert len(schemas()) == kept
    assert not Checkpoint.objects.exclude(generation__in=[0, kept]).exists()
    assert rebuild(cls.name, InProcess(), nothing).is_swapped
    assert len(schemas()) == 1
    assert {one.generation for one in Checkpoint.objects.filter(subscriber=cls.name)} <= {0, 3}


def _crash_at(monkeypatch: pytest.MonkeyPatch, harness: Harness, cls: type[Subscriber], stage: str) -> None:
    def crash(at: str, **figures: object) -> None:
        if at == "replay" and stage == "catch up":
            harness.stored("crashed", Added(amount=1))
        if at == stage:
            raise Crash(stage)

    with monkeypatch.context() as patch:
        patch.setattr("enode_django.rebuilding.rebuild._give_up", lambda target, record: None)
        with pytest.raises(Crash):
            rebuild(cls.name, InProcess(), crash)
    connection.close()
    if stage == "catch up":
        sql("DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 'crashed'")


@BOTH
@pytest.mark.parametrize("stage", STAGES)
def test_a_session_that_is_ended_at_any_stage_leaves_the_tables_whole(
    followed: Harness, cls: type[Subscriber], stage: str
) -> None:
    ended: list[bool] = []

    def end_session(at: str, **figures: object) -> None:
        if at == "replay":
            followed.stored("e", Added(amount=4))  # the catch-up needs an event
        if at == stage and not ended:
            ended.append(True)
            (pid,) = asked("SELECT pg_backend_pid()")[0]
            with bare_session() as session:
                session.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    followed.stored("d", Added(amount=4))
    before = (posted(), balances())
    try:
        swapped = rebuild(cls.name, InProcess(), end_session).is_swapped
    except Exception:
        swapped = False
        assert (posted(), balances()) == before
        assert schemas() == []
    assert ended
    assert Target.of(cls.name).generation() == int(swapped)
    if stage in ("replay", "swap"):
        assert swapped, "what was half done is done again"
    follow()
    assert rebuild(cls.name, InProcess(), nothing).comparison.is_equal


@BOTH
def test_a_commit_whose_answer_was_lost_counts(
    followed: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    swap, session = swapping.Swap._swap, vars(connections["default"])

    def lose_the_answer(self: swapping.Swap, last_steps: Callable[[], None]) -> None:
        swap(self, last_steps)
        commit = connection._commit

        def commit_and_lose() -> None:
            del session["_commit"]
            commit()
            connection.connection.close()
            commit()

        session["_commit"] = commit_and_lose

    monkeypatch.setattr(swapping.Swap, "_swap", lose_the_answer)
    assert rebuild(cls.name, InProcess(), nothing).is_swapped
    assert Target.of(cls.name).generation() == 1
    assert amounts(cls, "a") == (10, 2)


@BOTH
def test_a_commit_that_the_server_makes_after_its_connection_was_lost_counts(
    followed: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt begins before that."""
    swap, session = swapping.Swap._swap, vars(connections["default"])
    late: list[Call] = []

    def lose_the_connection(self: swapping.Swap, last_steps: Callable[[], None]) -> None:
        swap(self, last_steps)
        if not late:
            session["_commit"] = commit_late

    def commit_late() -> None:
        del session["_commit"]
        committing = connection.connection

        def commit() -> None:
            wait_until(lambda: someone_waits_for(cls, "ExclusiveLock"))
            committing.commit()
            committing.close()

        with bare_session() as lost:
            connection.connection = lost
        late.append(Call(commit))
        connection._commit()

    monkeypatch.setattr(swapping.Swap, "_swap", lose_the_connection)
    assert rebuild(cls.name, InProcess(), nothing).is_swapped
    late[0].result()
    assert Target.of(cls.name).generation() == 1
    assert amounts(cls, "a") == (10, 2)
