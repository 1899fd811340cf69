"""A node of a Redis Cluster that is cut off from the others: it tells clients an outdated map of the slots."""

from __future__ import annotations

import contextlib
import socket
import threading
from io import BufferedRWPair
from types import TracebackType
from typing import Self


class OutdatedNode:
    """Answers every request for the map of slots with one owner, the port ``owner`` of this machine, until `tell` names
    another one. ``asked`` counts these requests."""

    def __init__(self, owner: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.tell(owner)
        self._clients: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = 0

    def tell(self, owner: int) -> None:
        self._map = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % owner

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="outdated node").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True, name="outdated node").start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client.makefile("rwb") as stream:
            while line := stream.readline():
                words = [self._word(stream) for _ in range(int(line[1:]))]
                is_map = b" ".join(words).upper() == b"CLUSTER SLOTS"
                self.asked += is_map
                stream.write(self._map if is_map else b"+PONG\r\n" if words[0].upper() == b"PING" else b"+OK\r\n")
                stream.flush()

    @staticmethod
    def _word(stream: BufferedRWPair) -> bytes:
        size = int(stream.readline()[1:])
        return stream.read(size + 2)[:-2]
