"""A rebuild that lacks only the swap is kept and swapped later, unless events are corrected meanwhile."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest

from enode_django.batch import KINDS
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import ProjectionsDiffer, RebuildError, TablesInUse
from enode_django.jobs.progress import Report
from enode_django.jobs.running import running_job
from enode_django.models import Rebuild
from enode_django.operating.corrections import correct, editable
from enode_django.rebuilding import swapping
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild, swap_kept, undo
from enode_django.rebuilding.replaying import Replayed
from enode_django.rebuilding.target import Target
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.integration.store_sessions import bare_session
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Posting, PostingLine, Postings
from tests.rebuilding.histories import before_the_last_step, follow, nothing, some_history
from tests.rebuilding.histories import postings as posted


@pytest.fixture
def followed(postings: Harness) -> Harness:
    some_history(postings, "a", "b", "c")
    follow()
    return postings


class SwapsOnly(InProcess):
    def replay(self, plan: Plan, report: Report) -> Replayed:
        raise AssertionError("everything was replayed")


@pytest.fixture
def kept(followed: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A harness with a rebuild that could not swap, because another session read the tables, as pg_dump does."""
    with monkeypatch.context() as patch, bare_session() as session:
        patch.setattr(swapping, "ATTEMPTS", 2)
        patch.setattr(swapping, "LOCK_TIMEOUT", "50ms")
        session.execute("SELECT count(*) FROM rebuilding_posting")
        with pytest.raises(TablesInUse, match=r"what was built is kept, .* rebuilding.postings --swap"):
            rebuild(Postings.name, InProcess(), nothing)
    return followed


def test_what_could_not_be_swapped_is_swapped_later_and_not_built_again(kept: Harness) -> None:
    kept.stored("a", Added(amount=5), after=3)
    swapped = swap_kept(Postings.name, SwapsOnly(), nothing)
    assert swapped.is_swapped
    assert swapped.comparison.is_equal
    assert Target.of(Postings.name).generation() == 1
    assert posted()["a"] == [0, 10, 5]
    with pytest.raises(RebuildError, match=r"rebuilding.postings has nothing that could be swapped"):
        swap_kept(Postings.name, SwapsOnly(), nothing)
    assert undo(Postings.name, InProcess(), nothing).is_swapped
    assert posted()["a"] == [0, 10, 5]


def test_a_job_swaps_what_an_earlier_one_has_built(kept: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.batch.engine_for", lambda archive: nullcontext(SwapsOnly()))
    with running_job("rebuild", Postings.name) as job:
        KINDS["rebuild"](job, name=Postings.name)
    assert job.figures["swapped"]


def test_a_comparison_leaves_what_is_kept(kept: Harness) -> None:
    assert rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison.is_equal
    assert len(schemas()) == 1, "its own tables are dropped"
    assert swap_kept(Postings.name, SwapsOnly(), nothing).is_swapped


def test_what_is_kept_is_compared_again(kept: Harness) -> None:
    Posting.objects.filter(account="b", amount=10).update(amount=7)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_posting of b: amount: rebuilt 10, in use 7"):
        swap_kept(Postings.name, SwapsOnly(), nothing)
    assert schemas() == []


def test_what_other_code_has_built_is_not_swapped(kept: Harness) -> None:
    Rebuild.objects.update(fingerprint=f"{sys.implementation.cache_tag}:other")
    with pytest.raises(RebuildError, match="no rebuild by this code has kept what it built"):
        swap_kept(Postings.name, SwapsOnly(), nothing)
    assert len(schemas()) == 1
    rebuild(Postings.name, InProcess(), nothing)
    assert len(schemas()) == 1, "the next rebuild has dropped it"


# -- events that are corrected ----------------------------------------------------------------------------------------


def correct_a(store: EventStore, amount: int) -> None:
    """Correct version 3 of "a", which has added 10, to add ``amount``."""
    events = [{"type": "following.Added", "schema_version": 1, "fields": {"amount": amount}}]
    correct(store, "a", 3, events, by="ann", reason="a typing error", last=editable(store, "a", 3).last)


def test_what_was_kept_before_a_correction_is_dropped_and_not_swapped(kept: Harness) -> None:
    kept.stored("a", Added(amount=5), after=3)
    correct_a(kept.store, 7)
    with pytest.raises(RebuildError, match="events of 'a' were corrected meanwhile: nothing is swapped"):
        swap_kept(Postings.name, SwapsOnly(), nothing, accept_differences=True)
    assert (Target.of(Postings.name).generation(), schemas()) == (0, [])
    rebuild(Postings.name, InProcess(), nothing, accept_differences=True)
    assert posted()["a"] == [0, 7, 5]


def test_what_was_kept_after_a_correction_is_swapped(
    followed: Harness, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    correct_a(followed.store, 7)
    Posting.objects.filter(account="a", amount=10).update(amount=7)
    PostingLine.objects.filter(posting__account="a", text="adds 10").update(text="adds 7")
    request.getfixturevalue("kept")
    assert swap_kept(Postings.name, SwapsOnly(), nothing).comparison.is_equal
    assert posted()["a"] == [0, 7]


def test_what_was_kept_by_a_version_that_noted_no_corrections_is_swapped_if_there_are_none(kept: Harness) -> None:
    Rebuild.objects.update(corrections={})
    correct_a(kept.store, 7)
    with pytest.raises(RebuildError, match="events of 'a' were corrected meanwhile"):
        swap_kept(Postings.name, SwapsOnly(), nothing)


def test_nothing_is_swapped_if_an_event_is_corrected_when_only_the_swap_is_left(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_last_step(monkeypatch, lambda: correct_a(followed.store, 7))
    with pytest.raises(RebuildError, match="events of 'a' were corrected meanwhile: nothing is swapped"):
        rebuild(Postings.name, InProcess(), nothing)
    assert (Target.of(Postings.name).generation(), schemas()) == (0, [])
