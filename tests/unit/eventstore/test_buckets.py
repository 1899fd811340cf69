"""The buckets that each shard owns: how they are recorded, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.eventstore.buckets import (
    ALL,
    BUCKETS,
    SET_UP,
    Found,
    ShardOwnership,
    bucket_of,
    even_shares,
    first_claims,
    owners,
    select_queue,
)
from enode_django.exceptions import ShardMismatch

ids = st.text(st.characters(), min_size=1, max_size=40)
"""Includes texts that cannot be ids, such as a lone surrogate."""
HALVES = even_shares(2)


def new(*aliases: str, has_streams: bool = False) -> list[Found]:
    return [Found(alias, None, has_streams) for alias in aliases]


def test_the_bucket_of_an_id_never_changes() -> None:
    """Stored aggregates would not be found in another bucket."""
    assert [bucket_of(id) for id in ("a", "account-1", "größe ☃", "x" * 255)] == [393, 218, 640, 821]


@given(ids)
def test_every_id_has_a_bucket(id: str) -> None:
    assert 0 <= bucket_of(id) < BUCKETS


@given(ids, st.integers(1, 64))
def test_a_queue_has_buckets_of_one_shard_where_their_numbers_divide(id: str, shards: int) -> None:
    queues = 4 * shards
    place = owners(first_claims(new(*map(str, range(shards)))))[bucket_of(id)]
    if BUCKETS % queues == 0:
        assert select_queue(id, queues) * shards // queues == place


@given(ids, st.integers(1, 2_000))
def test_a_queue_is_one_of_those_there_are(id: str, queues: int) -> None:
    assert 0 <= select_queue(id, queues) < queues


@given(st.integers(1, 70))
def test_even_shares_are_complete_disjoint_and_of_one_size(count: int) -> None:
    shares = even_shares(count)
    assert frozenset().union(*shares) == ALL
    assert sum(map(len, shares)) == BUCKETS
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_new_shards_share_the_buckets() -> None:
    claims = first_claims(new("a", "b"))
    assert claims == {"a": ShardOwnership(0, 0, HALVES[0]), "b": ShardOwnership(1, 0, HALVES[1])}
    assert owners(claims) == [0] * 512 + [1] * 512


def test_a_new_database_alone_has_them_all_at_once() -> None:
    assert first_claims(new("a")) == {"a": ShardOwnership(0, SET_UP, ALL)}


def test_recording_that_was_interrupted_goes_on() -> None:
    found = [Found("a", ShardOwnership(0, 0, HALVES[0])), *new("b")]
    assert first_claims(found) == {"b": ShardOwnership(1, 0, HALVES[1])}


def test_a_store_from_before_there_were_records_keeps_all_its_buckets() -> None:
    """It becomes shard 0 at any place in the settings, because its subscriptions were taken over as those of shard
    0."""
    found = [*new("new"), *new("old", has_streams=True), *new("newer")]
    assert first_claims(found) == {
        "new": ShardOwnership(1, 0, frozenset()),
        "old": ShardOwnership(0, 0, ALL),
        "newer": ShardOwnership(2, 0, frozenset()),
    }


def test_recording_the_shards_of_such_a_store_goes_on_after_it_was_interrupted() -> None:
    found = [Found("new", ShardOwnership(1, 0, frozenset())), *new("old", has_streams=True), *new("newer")]
    assert first_claims(found) == {"old": ShardOwnership(0, 0, ALL), "newer": ShardOwnership(2, 0, frozenset())}


def test_recording_may_go_on_with_the_shards_in_another_order() -> None:
    found = [*new("b"), Found("a", ShardOwnership(0, 0, HALVES[0]))]
    assert first_claims(found) == {"b": ShardOwnership(1, 0, HALVES[1])}


def test_a_shard_with_streams_knows_that_all_had_recorded_their_buckets() -> None:
    found = [Found("a", ShardOwnership(0, 0, HALVES[0]), has_streams=True), *new("wrong")]
    with pytest.raises(ShardMismatch, match="'wrong', but its siblings know"):
        first_claims(found)


def test_databases_of_several_stores_are_not_taken_for_shards_of_one() -> None:
    with pytest.raises(ShardMismatch, match="'a', 'b' hold event streams"):
        first_claims(new("a", "b", has_streams=True))


def test_a_shard_that_joins_gets_no_buckets() -> None:
    found = [Found("a", ShardOwnership(0, SET_UP, ALL), has_streams=True), *new("b", "c")]
    assert first_claims(found) == {
        "b": ShardOwnership(1, SET_UP, frozenset()),
        "c": ShardOwnership(2, SET_UP, frozenset()),
    }


def test_an_empty_database_in_place_of_a_shard_is_refused() -> None:
    found = [Found("a", ShardOwnership(0, SET_UP, HALVES[0])), *new("wrong")]
    with pytest.raises(ShardMismatch, match=r"'wrong', but its siblings know that 512 of 1024 buckets"):
        first_claims(found)


def test_a_shard_that_is_not_named_is_missed() -> None:
    with pytest.raises(ShardMismatch, match=r"512 of 1024 buckets .* \['b'\] does not name"):
        owners({"b": ShardOwnership(1, SET_UP, HALVES[1])})


def test_a_database_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ShardMismatch, match="'a' and 'again' both say that they are shard 0"):
        owners({"a": ShardOwnership(0, 1, ALL), "again": ShardOwnership(0, 1, ALL)})


def test_a_bucket_with_two_owners_is_refused() -> None:
    with pytest.raises(ShardMismatch, match="bucket 511 is recorded in 'a' and in 'b'"):
        owners({"a": ShardOwnership(0, 1, HALVES[0]), "b": ShardOwnership(1, 1, HALVES[1] | {511})})


def test_the_order_of_the_settings_does_not_matter() -> None:
    claims = {"b": ShardOwnership(1, 3, HALVES[1]), "a": ShardOwnership(0, 5, HALVES[0])}
    assert owners(claims) == [1] * 512 + [0] * 512
