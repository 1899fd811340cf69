"""A small HTTP server for health probes and metrics. Each page is made anew for each request.

One thread serves all connections. An exchange may take `SECONDS`, and a request's head `MAX_REQUEST` bytes. If an
address, or all together, have too many connections, the oldest one without a complete request is closed. So a slow
client holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from enode_django.concurrency.threads import start_thread
from enode_django.equeue.arrivals import Arrivals
from enode_django.exceptions import ConfigurationError

logger = logging.getLogger("enode_django.supervisor")

MAX_CONNECTIONS = 64
MAX_WAITING_OF_ADDRESS = 16
"""Connections of one address that may be open without their request."""
MAX_REQUEST = 8192
"""Bytes of a request's head; its body is never read."""
SECONDS = 5.0
"""For a whole exchange: the request and its answer."""
STOP_SECONDS = 2.0
_TURNS = 10
"""Turns of the event loop: more than asyncio needs from accepting a connection to serving it."""


class Page(NamedTuple):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]
"""Functions by path. They are called in the server's thread, so they must not block."""


class ProbeServer:
    """Serves from construction until `stop`. Raises `ConfigurationError` if it cannot listen."""

    def __init__(self, address: str, port: int, pages: Pages) -> None:
        self._pages = pages
        self._open: set[StreamWriter] = set()
        self._arrivals: Arrivals[StreamWriter] = Arrivals(MAX_WAITING_OF_ADDRESS)
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((address, port), family=family)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"{address!r}, port {port!r} cannot be listened on: {error}; choose another"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://[{address}]:{self.port}" if ":" in address else f"http://{address}:{self.port}"
        self._stopping = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._thread = start_thread("enode-probes", self._run)

    def stop(self) -> None:
        """Close all connections. Blocks up to `STOP_SECONDS`. Safe to call twice."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        with self._socket, self._runner as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=MAX_REQUEST)
        await self._stopping.wait()
        # Stop accepting, then abort the open connections, then close the server. Closing the server first would leave
        # just accepted connections open, and cancel the tasks that serve them with a traceback.
        self._loop.remove_reader(self._socket)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0)
        server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._has_room_for(writer):
                async with asyncio.timeout(SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    self._arrivals.discard(writer)
                    writer.write(self._answer(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("a probe ended early: %r", error)
        finally:
            self._arrivals.discard(writer)
            self._open.remove(writer)
            writer.transport.abort()

    def _has_room_for(self, writer: StreamWriter) -> bool:
        """Return True if the connection may wait for its request. Another one is aborted if there are too many."""
        peer = writer.get_extra_info("peername")
        crowded_out = self._arrivals.add(writer, str(peer[0]) if peer else "")
        is_full = crowded_out is None and len(self._open) > MAX_CONNECTIONS
        if is_full:
            crowded_out = self._arrivals.take_oldest(writer)
        if crowded_out is not None:
            crowded_out.transport.abort()
        return crowded_out is not None or not is_full

    def _answer(self, head: bytes) -> bytes:
        method, path = _request(head)
        page = self._page(method, path)
        lines = [
            f"HTTP/1.1 {page.status.value} {page.status.phrase}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        body = b"" if method == "HEAD" else page.body
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def _page(self, method: str, path: str) -> Page:
        if not method:
            return Page(b"bad request\n", HTTPStatus.BAD_REQUEST)
        make = self._pages.get(path)
        if make is None:
            return Page(f"there are {', '.join(self._pages)}\n".encode(), HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return Page(b"only GET and HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return make()
        except Exception:  # a client gets an answer even if a page fails
            logger.exception("the page %s cannot be made", path)
            return Page(b"it cannot be made; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)


def _request(head: bytes) -> tuple[str, str]:
    """Return the method and the path of a request's head. The method is empty if the head is malformed.

    >>> _request(b"GET /ready?verbose HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"), _request(b"what?\\r\\n\\r\\n")
    (('GET', '/ready'), ('', ''))
    """
    parts = head.split(b"\r\n", 1)[0].split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        return "", ""
    return parts[0].decode("latin-1"), parts[1].split(b"?", 1)[0].decode("latin-1")


def verdict(reasons: list[str]) -> Page:
    """Return the page of a health probe: 503 with one reason per line, or 200 without reasons."""
    if not reasons:
        return Page(b"ok\n")
    return Page("".join(f"{reason}\n" for reason in reasons).encode(), HTTPStatus.SERVICE_UNAVAILABLE)
