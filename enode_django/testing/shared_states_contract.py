"""The contract of every driver of `SharedStates` without failures. Subclass it and define the fixture ``states``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from enode_django.repository.states import SharedStates
from enode_django.repository.store import Snapshot


def state(id: str = "a", version: int = 7, payload: bytes = b"state") -> Snapshot:
    made_at = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC) + timedelta(microseconds=version)
    return Snapshot(id, "bank.BankAccount", version, "f" * 32, payload, made_at)


class SharedStatesContract:
    """The whole contract of shared states.

    For example::

        class TestMyStates(SharedStatesContract):
            @pytest.fixture
            def states(self) -> SharedStates:
                return MemoryStates()
    """

    @pytest.fixture
    def states(self) -> SharedStates:
        raise NotImplementedError

    def test_what_is_saved_comes_back(self, states: SharedStates) -> None:
        one, other = state("a", payload=bytes(range(256)) * 100), state("ü🙂" * 50, 2**40, payload=b"")
        states.save([one, other])
        assert states.load(["a", "b", other.aggregate_root_id]) == {"a": one, other.aggregate_root_id: other}

    def test_nothing_asked_nothing_found(self, states: SharedStates) -> None:
        states.save([])
        assert states.load([]) == {}

    def test_an_id_that_cannot_be_stored_has_none(self, states: SharedStates) -> None:
        states.save([state()])
        assert states.load(["\0", "\ud800", "a"]) == {"a": state()}

    def test_many_are_found_in_one_go(self, states: SharedStates) -> None:
        many = [state(f"a{n}", n, b"x" * (n * 97 % 5_000)) for n in range(1_000)]
        states.save(many)
        assert list(states.load([one.aggregate_root_id for one in many]).values()) == many

    def test_what_is_saved_last_takes_the_place_even_if_it_is_older(self, states: SharedStates) -> None:
        states.save([state(version=9)])
        states.save([state(version=8), state(version=7)])
        assert states.load(["a"]) == {"a": state(version=7)}

    def test_what_is_deleted_is_gone(self, states: SharedStates) -> None:
        states.save([state("a"), state("b"), state("c")])
        states.delete("a")
        states.delete("a")
        states.discard(state("b", version=1))
        assert states.load("abc") == {"c": state("c")}
