"""Other users of the machine, and the broker's files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from enode_django.equeue.broker.backup import back_up
from enode_django.equeue.broker.index import SEGMENT_ENTRIES
from tests.equeue.storing import batch, opened


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}


def test_nobody_but_the_broker_may_read_what_it_writes(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "broker"
    store, _ = opened(directory, chunk_size=1 << 20, reserve=1 << 16)
    for _ in range(3):
        store.append("orders", [batch(0, b"secret")] * (SEGMENT_ENTRIES // 2))
    store.flush()
    store.close(b"\x97\x04\x01\xc0\xc0\xa0\xc3\x92\xa0\x80")
    back_up(directory, "first")
    found = modes(tmp_path)
    kinds = {Path(name).suffix or Path(name).name for name, mode in found.items() if mode == 0o600}
    assert {".chunk", "checkpoint", "lock"} <= kinds
    assert {name for name, mode in found.items() if mode & 0o077} == set()


@pytest.mark.parametrize(("mode", "left"), [(0o755, 0o750), (0o777, 0o770), (0o2770, 0o2770), (0o700, 0o700)])
def test_a_directory_of_an_earlier_version_is_shut_for_everybody_but_its_group(
    tmp_path: Path, mode: int, left: int
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(mode)
    opened(directory)[0].close(b"")
    assert stat.S_IMODE(directory.stat().st_mode) == left
