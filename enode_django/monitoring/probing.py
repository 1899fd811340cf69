"""A small HTTP server for health probes and metrics: a few pages, each made anew for each request.

One thread serves all connections. A client has a few seconds for its whole request and for taking the answer, and a
few kilobytes for it. Where there are too many connections, of one address or at all, the one that has waited longest
for its request is closed. So no client can hold up more than itself.
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
"""Seconds that a whole exchange may take."""
STOP_SECONDS = 2.0
_TURNS = 10
"""Turns of the loop: more than asyncio needs from accepting a connection to serving it."""


class Page(NamedTuple):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]
"""By path. They are made in the server's thread, so they must not block."""


class ProbeServer:
    """Takes connections from the moment it is made until `stop`. Raises `ConfigurationError` if it cannot listen."""

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
        """Close all connections. Safe to call twice."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        with self._socket, self._runner as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=MAX_REQUEST)
        await self._stopping.wait()
        # Accept no more, and close those that are open, and then the server. A server that is closed before would leave
        # open what it had just accepted, and whoever serves a connection would be cancelled with a traceback.
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
            logger.debug("a probe was broken off: %r", error)
        finally:
            self._arrivals.discard(writer)
            self._open.remove(writer)
            writer.transport.abort()

    def _has_room_for(self, writer: StreamWriter) -> bool:
        """Let a connection wait for its request, in the place of another one if need be."""
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
        except Exception:  # whoever probes gets an answer whatever a page does
            logger.exception("the page %s cannot be made", path)
            return Page(b"it cannot be made; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)


def _request(head: bytes) -> tuple[str, str]:
    """Method and path; an empty method for what is not a request.

    >>> _request(b"GET /ready?verbose HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"), _request(b"what?\\r\\n\\r\\n")
    (('GET', '/ready'), ('', ''))
    """
    parts = head.split(b"\r\n", 1)[0].split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        return "", ""
    return parts[0].decode("latin-1"), parts[1].split(b"?", 1)[0].decode("latin-1")


def verdict(reasons: list[str]) -> Page:
    """Return the page of a health probe: the reasons against it, one a line."""
    if not reasons:
        return Page(b"ok\n")
    return Page("".join(f"{reason}\n" for reason in reasons).encode(), HTTPStatus.SERVICE_UNAVAILABLE)
