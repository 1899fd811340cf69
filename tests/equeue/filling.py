"""Fill a message store until the disk is full, and print the results as JSON. A test runs this in a separate process,
on a small file system, or with a limit on the size of files, which applies after the first message.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from enode_django.exceptions import QueueFull
from tests.equeue.storing import bodies, messages, opened, send

BODY = b"x" * 2000


def main(directory: Path, chunk_size: int, limit: int) -> None:
    store, _ = opened(directory, chunk_size=chunk_size)
    send(store, 0, b"%06d" % 0 + BODY)
    refused: list[str] = []
    sent = 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    while len(refused) < 3:
        try:
            send(store, 0, b"%06d" % sent + BODY)
            sent += 1
        except QueueFull as error:
            refused.append(str(error))
            assert store.bounds("orders", 0) == (0, sent)
    readable = bodies(messages(store, "orders", 0)) == [b"%06d" % number + BODY for number in range(sent)]
    try:
        store.flush()
        store.checkpoint(b"x" * 10_000)
        checkpoint = "written"
    except QueueFull:
        checkpoint = "refused"
    store.abandon()
    store, _ = opened(directory, chunk_size=chunk_size)
    again = len(messages(store, "orders", 0))
    try:
        send(store, 0, BODY)
        after = "taken"
    except QueueFull:
        after = "refused"
    print(json.dumps([sent, refused, readable, checkpoint, again, after, sorted(store.reader.damaged)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
