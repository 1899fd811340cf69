"""The content of checkpoints, and the checkpoints that can be read."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from enode_django.equeue.broker.packing import joined, pieces
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import encode_records, seal

VALUES = st.recursive(
    st.integers(0, 99) | st.binary(max_size=3) | st.text(max_size=3) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
)


@given(VALUES, st.integers(0, 5), st.integers(1, 20))
def test_a_value_in_pieces_is_the_value(value: object, depth: int, size: int) -> None:
    parts = list(joined(pieces(value, depth), size))
    assert b"".join(parts) == msgpack.packb(value)
    assert all(len(part) >= size for part in parts[:-1])


def test_a_checkpoint_comes_back_and_one_of_another_format_does_not(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    queues = [("t", 0, 7, [[0, 7, 900, 5, 1 << 31]])]
    expected = Checkpoint(1 << 40, 1_000, (("t", 0, 7, ((0, 7, 900, 5, 1 << 31),)),), b"state" * 100_000)
    write_checkpoint(path, expected.position, expected.time, queues, iter([b"state"] * 100_000))
    assert read_checkpoint(path) == expected
    path.write_bytes(seal(msgpack.packb([1, *expected])))
    assert read_checkpoint(path) is None


def test_what_cannot_be_packed_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, 1, 2, [], [b"state"])
    with pytest.raises(TypeError):
        write_checkpoint(path, 3, 4, [], map(msgpack.packb, [object()]))
    assert read_checkpoint(path) == Checkpoint(1, 2, (), b"state")
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_state_of_a_checkpoint_is_of_the_moment_it_began(tmp_path: Path) -> None:
    def opened() -> BrokerState:
        state = BrokerState(MessageStore(tmp_path, chunk_size=1 << 20, preload=0), patience=10.0)
        state.open()
        return state

    state = opened()
    state.create_topic("t", 1)
    epoch = state.acquire("g", "t", 0, "one", 60.0, 0).epoch
    state._store.append("t", [NewBatch(0, 9, encode_records([b"x"] * 9))])
    state.commit("g", "t", {0: Commit(epoch, 3, [Receipt(1, b"one"), Receipt(2, b"two")], 9)})
    pending = state.begin_checkpoint()
    assert pending is not None
    state.commit("g", "t", {0: Commit(epoch, 5, [Receipt(4, b"four")], 9)})
    pending.write()
    written = read_checkpoint(tmp_path / "checkpoint")
    assert written is not None
    assert b"two" in written.state
    assert b"four" not in written.state
    state._store.abandon()
    state = opened()
    assert state.coordinator.receipts("g", "t", 0) == [b"one", b"two", b"four"]
    state._store.abandon()
