"""The contract of every `UniqueValues`. Subclass it and define the fixture ``values``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from enode_django.eventstore.unique_values import Change, Claim, Confirmed, Owner, UniqueKey, UniqueValue, UniqueValues

TYPE = "members.Join"


def key(value: str = "ada", name: str = "members.Member:nickname") -> UniqueKey:
    return UniqueKey(name, value.encode().ljust(32, b"\0"))


def by(id: str, command: str = "", version: int = 1) -> Owner:
    return Owner(id, version, command or f"command of {id}", TYPE)


def stored(id: str, version: int, claims: Sequence[UniqueKey] = (), releases: Sequence[UniqueKey] = ()) -> Confirmed:
    return Confirmed(id, f"command of {id}", version, claims, releases)


class UniqueValuesContract:
    """The whole contract of unique values.

    For example::

        class TestMyUniqueValues(UniqueValuesContract):
            @pytest.fixture
            def values(self) -> UniqueValues:
                return MemoryUniqueValues()
    """

    @pytest.fixture
    def values(self) -> UniqueValues:
        raise NotImplementedError

    def leave_thread(self) -> None:
        """Called at the end of each thread that a test starts."""

    @staticmethod
    def row(values: UniqueValues) -> UniqueValue:
        return next(row for row in values.rows() if row.key == key())

    # -- claims ---------------------------------------------------------------------------------------------------

    def test_what_one_of_many_commands_cannot_have_keeps_nothing_from_the_others(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key("ada")], [])
        values.claim(by("d"), [key("dan")], [])
        values.claim(by("e"), [key("eve")], [])
        found = values.claim_all(
            [
                Claim(by("c"), Change([key("cyd")], [])),
                Claim(by("b"), Change([key("ada"), key("bob")], [])),
                Claim(by("d", "leave", 2), Change([], [key("dan")])),
                Claim(by("e", "change", 2), Change([key("eva")], [key("eve")])),
            ]
        )
        assert [[row.aggregate_root_id for row in others] for others in found] == [[], ["a"], [], []]
        owners = {row.key: (row.aggregate_root_id, list(row.claims), list(row.releases)) for row in values.rows()}
        assert owners == {
            key("ada"): ("a", ["command of a"], []),
            key("bob"): ("b", ["command of b"], []),
            key("cyd"): ("c", ["command of c"], []),
            key("dan"): ("d", ["command of d"], [2]),
            key("eva"): ("e", ["change"], []),
            key("eve"): ("e", ["command of e"], [2]),
        }

    def test_who_is_refused_among_many_gives_nothing_up(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key("ada")], [])
        values.claim(by("b"), [key("bob")], [])
        others, none = values.claim_all(
            [
                Claim(by("b", "change", 2), Change([key("ada")], [key("bob")])),
                Claim(by("c"), Change([key("cyd")], [])),
            ]
        )
        assert ([row.key for row in others], none) == ([key("ada")], [])
        assert [list(row.releases) for row in values.rows()] == [[], [], []]
        assert values.claim_all([]) == []

    def test_the_first_claim_wins_and_the_others_are_shown_its_row(self, values: UniqueValues) -> None:
        assert values.claim(by("a"), [key("ada"), key("bob")], []) == []
        (held,) = values.claim(by("b"), [key("bob"), key("cyd")], [])
        assert (held.key, held.aggregate_root_id, held.claims) == (key("bob"), "a", {"command of a": TYPE})
        assert (list(held.releases), held.version, held.is_settled) == ([], 0, False)
        assert 0 <= held.age < 60
        assert [(row.key, row.aggregate_root_id) for row in values.rows()] == [
            (key("ada"), "a"),
            (key("bob"), "a"),
            (key("cyd"), "b"),
        ]

    def test_names_divide_the_values(self, values: UniqueValues) -> None:
        assert values.claim(by("a"), [key("ada")], []) == []
        assert values.claim(by("b"), [key("ada", "other")], []) == []

    def test_a_repeated_claim_changes_nothing_but_the_token(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        before = self.row(values)
        assert values.claim(by("a"), [key()], []) == []
        after = self.row(values)
        assert after.claims == before.claims
        assert after.token != before.token

    def test_several_commands_of_the_owner_are_under_way(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        values.claim(by("a", "2", 2), [key("bob")], [key()])
        values.claim(by("a", "3", 3), [key()], [key("bob")])
        row = self.row(values)
        assert (row.claims, list(row.releases)) == ({"1": TYPE, "3": TYPE}, [2])
        values.confirm([Confirmed("a", "1", 1, [key()], [])])
        assert self.row(values).claims == {"3": TYPE}
        values.confirm([Confirmed("a", "2", 2, [key("bob")], [key()])])
        assert self.row(values).claims == {"3": TYPE}

    def test_a_command_that_does_not_get_its_values_gives_none_up(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key("ada")], [])
        values.claim(by("b"), [key("bob")], [])
        (held,) = values.claim(by("b", "2", 2), [key("ada"), key("cyd")], [key("bob")])
        assert held.aggregate_root_id == "a"
        assert [list(row.releases) for row in values.rows()] == [[], [], []]
        values.free(held)
        assert values.claim(by("b", "2", 2), [key("ada")], [key("bob")]) == []
        assert [list(row.releases) for row in values.rows()] == [[], [2], []]

    def test_nobody_releases_what_belongs_to_another(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        assert values.claim(by("b"), [], [key(), key("unknown")]) == []
        assert [list(row.releases) for row in values.rows()] == [[]]

    # -- confirmations --------------------------------------------------------------------------------------------

    def test_a_confirmed_value_is_held_until_its_release_is_confirmed(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        for _ in range(2):
            values.confirm([stored("a", 1, [key()])])
            row = self.row(values)
            assert (row.is_settled, row.version) == (True, 1)
        values.claim(by("a", "leave", 2), [], [key()])
        row = self.row(values)
        assert list(row.releases) == [2]
        values.confirm([Confirmed("a", "leave", 2, [], [key()])])
        assert list(values.rows()) == []

    def test_a_chain_in_one_call_ends_as_its_last_stream_says(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        values.claim(by("a", "2", 2), [key("bob")], [key()])
        values.claim(by("a", "3", 3), [key()], [key("bob")])
        chain = [
            Confirmed("a", "1", 1, [key()], []),
            Confirmed("a", "2", 2, [key("bob")], [key()]),
            Confirmed("a", "3", 3, [key()], [key("bob")]),
        ]
        values.confirm(chain)
        (row,) = values.rows()
        assert (row.key, row.is_settled, row.version) == (key(), True, 3)

    def test_an_old_confirmation_that_comes_late_takes_nothing_away(self, values: UniqueValues) -> None:
        values.claim(by("a", "2", 2), [], [key()])
        values.claim(by("a", "3", 3), [key()], [])
        values.claim(by("a", "2", 2), [], [key()])
        values.confirm([Confirmed("a", "3", 3, [key()], [])])
        row = self.row(values)
        assert (list(row.releases), row.version) == ([2], 3)
        values.confirm([Confirmed("a", "2", 2, [], [key()])])
        row = self.row(values)
        assert (row.is_settled, row.version) == (True, 3)

    def test_an_old_claim_that_is_confirmed_late_is_not_settled_by_that(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        values.claim(by("a", "2", 2), [], [key()])
        values.confirm([Confirmed("a", "2", 2, [], [key()])])  # its claim is still under way
        values.confirm([Confirmed("a", "1", 1, [key()], [])])
        row = self.row(values)
        assert (row.claims, row.version) == ({"1": TYPE}, 2)

    def test_confirmations_of_a_former_owner_change_nothing(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        (row,) = values.rows()
        assert values.take_over(row, by("b"))
        values.confirm([stored("a", 1, [key()]), stored("a", 2, [], [key()])])
        (row,) = values.rows()
        assert (row.aggregate_root_id, row.claims, row.version) == ("b", {"command of b": TYPE}, 0)

    def test_a_release_during_a_new_claim_leaves_the_row(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        values.confirm([Confirmed("a", "1", 1, [key()], [])])
        values.claim(by("a", "2", 2), [], [key()])
        values.claim(by("a", "3", 3), [key()], [])
        values.confirm([Confirmed("a", "2", 2, [], [key()])])
        row = self.row(values)
        assert (row.claims, list(row.releases), row.version) == ({"3": TYPE}, [], 2)

    def test_a_stored_stream_whose_claim_is_gone_is_returned(self, values: UniqueValues) -> None:
        kept = stored("a", 1, [key("ada")])
        assert values.claim(by("a"), [key("ada")], []) == []
        assert values.claim(by("b"), [key("bob")], []) == []
        gone, foreign = stored("c", 1, [key("cyd")]), stored("d", 1, [key("bob"), key("dan")])
        assert list(values.confirm([kept, gone, foreign])) == [gone, foreign]
        assert {row.key for row in values.rows()} == {key("ada"), key("bob")}
        assert list(values.confirm([kept, Confirmed("a", "leave", 2, [], [key("ada")])])) == []

    # -- with a token ---------------------------------------------------------------------------------------------

    def test_a_changed_row_is_not_changed_by_an_old_token(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        (old,) = values.rows()
        values.claim(by("a", "2", 2), [key()], [])
        assert not values.take_over(old, by("b"))
        assert not values.keep(old, 1)
        assert not values.free(old)
        (old,) = values.rows()
        values.claim(by("a", "3", 3), [], [key()])
        assert not values.free(old)
        (row,) = values.rows()
        assert values.free(row)
        assert not values.free(row)
        assert list(values.rows()) == []

    def test_a_row_that_was_made_anew_has_another_token(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        (old,) = values.rows()
        values.free(old)
        values.claim(by("a"), [key()], [])
        assert not values.free(old)

    def test_a_row_that_is_taken_over_begins_anew(self, values: UniqueValues) -> None:
        values.claim(by("a"), [key()], [])
        values.confirm([stored("a", 7, [key()])])
        values.claim(by("a", "leave", 8), [], [key()])
        assert values.take_over(self.row(values), by("b"))
        row = self.row(values)
        assert (row.claims, list(row.releases), row.version) == ({"command of b": TYPE}, [], 0)
        values.confirm([stored("b", 1, [key()])])
        assert self.row(values).is_settled

    def test_whoever_claims_keeps_or_takes_a_row_makes_it_the_youngest(self, values: UniqueValues) -> None:
        def oldest_first() -> list[UniqueKey]:
            return [row.key for row in values.unsettled(0)]

        values.claim(by("a"), [key("ada")], [])
        values.claim(by("b"), [key("bob")], [])
        assert oldest_first() == [key("ada"), key("bob")]
        values.claim(by("a", "again", 2), [key("ada")], [])
        assert oldest_first() == [key("bob"), key("ada")]
        values.claim(by("b", "leave", 9), [], [key("bob")])
        values.claim(by("a", "again", 3), [key("ada")], [])
        bob, ada = values.unsettled(0)
        assert values.keep(bob, 3)
        assert oldest_first() == [key("ada"), key("bob")]
        assert values.take_over(ada, by("c"))
        assert oldest_first() == [key("bob"), key("ada")]

    def test_kept_rows_are_settled_but_for_later_releases(self, values: UniqueValues) -> None:
        values.claim(by("a", "1", 1), [key()], [])
        for version in (2, 4):
            values.claim(by("a", "leave", version), [], [key()])
            values.claim(by("a", "leave", version), [], [key()])
        (row,) = values.rows()
        assert sorted(row.releases) == [2, 4]
        assert values.keep(row, 3)
        (row,) = values.rows()
        assert (row.claims, list(row.releases), row.version) == ({}, [4], 3)
        assert values.keep(row, 4)
        (row,) = values.rows()
        assert (row.is_settled, row.version) == (True, 4)

    # -- all rows -------------------------------------------------------------------------------------------------

    def test_adopted_values_are_held_if_nobody_had_them(self, values: UniqueValues) -> None:
        values.claim(by("b"), [key("bob")], [])
        rows = values.adopt("a", 3, [key("ada"), key("bob")])
        assert [(row.key, row.aggregate_root_id, row.version, row.is_settled) for row in rows] == [
            (key("ada"), "a", 3, True),
            (key("bob"), "b", 0, False),
        ]

    def test_only_old_rows_with_commands_under_way_are_unsettled(self, values: UniqueValues) -> None:
        values.adopt("a", 1, [key("ada")])
        values.claim(by("b"), [key("bob")], [])
        values.claim(by("a", "leave", 2), [], [key("ada")])
        values.adopt("c", 1, [key("cyd")])
        assert {row.key for row in values.unsettled(0)} == {key("ada"), key("bob")}
        pages = [values.unsettled(0, skip=skip, limit=1) for skip in range(3)]
        assert [[row.key for row in page] for page in pages] == [[key("bob")], [key("ada")], []]
        assert values.unsettled(3_600) == []

    def test_ids_and_types_may_have_any_text(self, values: UniqueValues) -> None:
        id, command = "ü🙂'\"\\{}" * 20, "c'\"\\,{}\n🙂"
        values.claim(Owner(id, 1, command, "t'\"\\"), [key()], [])
        (row,) = values.rows()
        assert (row.aggregate_root_id, row.claims) == (id, {command: "t'\"\\"})
        values.confirm([Confirmed(id, command, 1, [key()], [])])
        (row,) = values.rows()
        assert row.is_settled

    def test_threads_that_race_have_one_winner_for_each_value(self, values: UniqueValues) -> None:
        racers, keys = 4, [key(f"value {number}") for number in range(50)]
        start = Barrier(racers)

        def race(number: int) -> set[UniqueKey]:
            start.wait()
            won = set()
            for one in keys:
                if not values.claim(by(f"racer {number}"), [one], []):
                    won.add(one)
            self.leave_thread()
            return won

        with ThreadPoolExecutor(racers) as pool:
            won = list(pool.map(race, range(racers)))
        assert sum(map(len, won)) == len(keys)
        assert set().union(*won) == set(keys)
        owners = {row.key: row.aggregate_root_id for row in values.rows()}
        assert all(owners[one] == f"racer {number}" for number, some in enumerate(won) for one in some)
