"""A check finds projections whose code has changed since it filled their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from enode_django import handles
from enode_django.checks.subscribers import check_rebuilds
from enode_django.eventing.code import rows_fingerprint
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ProjectionsDiffer
from enode_django.models import ProjectionGeneration, Rebuild, Subscription
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, undo
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.rebuilding.domain import Balance, Balances, Posting, Postings
from tests.rebuilding.test_rebuild import follow, nothing, some_history


def instance(cls: type[Any]) -> Any:
    return subscribers.instance(cls)


@handles(Added)
def added_otherwise(self: Balances, row: Balance, event: Added) -> None:
    row.total += abs(event.amount)
    row.count += 1


@handles(Added)
def added_wrongly(self: Balances, row: Balance, event: Added) -> None:
    row.total -= event.amount


def redefine(monkeypatch: pytest.MonkeyPatch, added: Callable[..., None]) -> None:
    monkeypatch.setattr(Balances, "added", added)
    monkeypatch.setattr(instance(Balances), "_enode_known_handlers", {})  # the cache of handlers


def changed() -> list[str]:
    return [message.msg for message in check_rebuilds(None, databases=["default"]) if message.id == "enode_django.W030"]


def test_the_fingerprint_follows_the_code_of_handlers_and_of_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {rows_fingerprint(instance(Balances)), rows_fingerprint(instance(Postings))}
    assert rows_fingerprint(instance(Balances)) in seen
    redefine(monkeypatch, added_otherwise)
    seen.add(rows_fingerprint(instance(Balances)))
    monkeypatch.setattr(Balance, "count_up", lambda row: None, raising=False)
    assert rows_fingerprint(instance(Balances)) in seen  # no handler calls the method
    redefine(monkeypatch, calling(lambda row: row.count_up()))
    seen.add(rows_fingerprint(instance(Balances)))
    monkeypatch.setattr(Balance, "count_up", lambda row: row.count, raising=False)
    seen.add(rows_fingerprint(instance(Balances)))
    assert len(seen) == 5


def calling(what: Callable[[Any], object]) -> Callable[..., None]:
    def added(self: Balances, row: Balance, event: Added) -> None:
        what(row)

    return added


def test_djangos_own_code_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_fingerprint(instance(Postings))
    monkeypatch.setattr(type(Posting.objects), "create", lambda manager, **fields: None)
    monkeypatch.setattr(Posting.__mro__[1], "save", lambda row: None)
    assert rows_fingerprint(instance(Postings)) == before


@pytest.fixture
def rebuilt(postings: Harness) -> Harness:
    some_history(postings, "a", "b")
    follow(postings, Balances, Postings)
    assert changed() == []
    for cls in (Balances, Postings):
        rebuild(cls.name, InProcess(), nothing)
    assert changed() == []
    return postings


def test_changed_code_is_warned_of_until_a_rebuild(rebuilt: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    redefine(monkeypatch, added_wrongly)
    (text,) = changed()
    assert text.startswith("The code of tests.rebuilding.domain.Balances has changed")
    with pytest.raises(ProjectionsDiffer):
        rebuild(Balances.name, InProcess(), nothing)
    assert len(changed()) == 1
    rebuild(Balances.name, InProcess(), nothing, accept_differences=True)
    assert changed() == []
    undo(Balances.name, InProcess(), nothing)
    assert len(changed()) == 1


def test_changed_code_is_warned_of_before_the_first_rebuild(postings: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    some_history(postings, "a", "b")
    follow(postings, Balances, Postings)
    assert changed() == []
    redefine(monkeypatch, added_wrongly)
    assert len(changed()) == 1
    rebuild(Balances.name, InProcess(), nothing, accept_differences=True)
    assert changed() == []
    undo(Balances.name, InProcess(), nothing)
    assert len(changed()) == 1, "the tables in use are those that the code before has filled"
    redefine(monkeypatch, added_otherwise)
    assert rebuild(Balances.name, InProcess(), nothing, compare_only=True).comparison.is_equal
    assert changed() == []


def test_code_that_makes_the_same_rows_needs_no_rebuild(rebuilt: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    redefine(monkeypatch, added_otherwise)
    assert len(changed()) == 1
    assert rebuild(Balances.name, InProcess(), nothing, compare_only=True).comparison.is_equal
    assert changed() == []
    redefine(monkeypatch, added_wrongly)
    rebuild(Balances.name, InProcess(), nothing, compare_only=True)
    assert len(changed()) == 1


def test_what_another_python_or_an_earlier_version_has_built_says_nothing(rebuilt: Harness) -> None:
    Rebuild.objects.update(fingerprint="jython-1:abc")
    assert changed() == []
    Rebuild.objects.update(fingerprint=None)
    assert changed() == []
    ProjectionGeneration.objects.all().delete()
    Subscription.objects.update(fingerprint=None)
    assert changed() == []
    assert check_rebuilds(None) == []
