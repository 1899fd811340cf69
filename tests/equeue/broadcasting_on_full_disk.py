"""A broadcasting consumer whose own disk becomes full. A test runs it in a separate process, on a small file system.
Ends with 0 if all is well."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enode_django.equeue.subscribing import Mode
from enode_django.equeue.transports.memory import MemoryTransport
from tests.equeue.consuming import Handled, consuming, eventually, texts


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Fill the file system of the directory with bytes, and then with empty files. Empty it at the end of the block."""
    made: list[Path] = []
    for size in (4096, 0):
        while True:
            path = directory / f"full-{len(made)}"
            try:
                made.append(path)
                path.write_bytes(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                break
    yield
    for path in made:
        path.unlink(missing_ok=True)


def offset_in(file: Path) -> int:
    offset: int = json.loads(file.read_text())["offsets"]["0"]
    return offset


def main(directory: Path) -> None:
    transport = MemoryTransport()
    transport.create_topic("orders", 1)
    options = {"mode": Mode.BROADCASTING, "directory": directory / "offsets"}
    file = directory / "offsets" / "billing@orders.json"
    handled = Handled()
    with consuming(transport, handled, **options) as consumer:
        transport.send("orders", {0: texts("a")})
        eventually(lambda: file.exists() and offset_in(file) == 1)
        with full(directory):
            transport.send("orders", {0: texts("b", "c")})
            eventually(lambda: handled.bodies == ["a", "b", "c"])
            assert offset_in(file) == 1
            begun_later = Handled()
            with consuming(transport, begun_later, **{**options, "group": "later"}) as later:
                assert not later.join(0.5)
                assert not consumer.join(0)
                assert begun_later.bodies == []  # it waits until it can lock its file of offsets
                offset = transport.send("orders", {0: texts("d")})[0]
                eventually(lambda: handled.bodies == ["a", "b", "c", "d"])
        eventually(lambda: offset_in(file) == offset + 1)
    with consuming(transport, begun_later, **{**options, "group": "later"}):
        eventually(lambda: begun_later.bodies == ["a", "b", "c", "d"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
