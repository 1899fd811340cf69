"""A TCP proxy that can reset, delay and silence its connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

PIECE = 256 * 1024
START_SECONDS = 60.0
_AT_ONCE = struct.pack("ii", 1, 0)
"""A linger option with which closing a socket sends a reset."""


class Proxy:
    """A proxy from a loopback port to the port ``target``. It runs in its own thread; all methods are thread-safe."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The port for new connections; it may be changed."""
        self.delay = 0.0
        """The delay of each piece in seconds."""
        self.port = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError(f"the proxy of port {target!r} did not start in {START_SECONDS:g} s")

    def cut(self) -> int:
        """Reset all connections and return their number (each has two ends)."""
        return self._call(self._cut)

    def lead_to(self, target: int) -> None:
        """Connect to another port from now on, and reset existing connections."""
        self.target = target
        self.cut()

    def silence(self) -> None:
        """Stop all traffic; connections stay open, and new ones are accepted."""
        self._call(self._flowing.clear)

    def resume(self) -> None:
        """Resume all traffic without a delay; held pieces are sent first."""
        self.delay = 0.0
        self._call(self._flowing.set)

    def close(self) -> None:
        """Reset all connections and stop listening. Safe to call twice."""
        if self._thread.is_alive():
            self._call(self._cut)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_SECONDS)

    def _call(self, function: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(START_SECONDS)

    def _cut(self) -> int:
        ends = list(self._connections)
        for writer in ends:
            with contextlib.suppress(OSError):  # the other end may have just closed it
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()
        return len(ends) // 2

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self._flowing.wait()
            with contextlib.suppress(OSError):
                theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
                self._connections.add(ours)
                try:
                    await self._join((reader, ours), (theirs, writer))
                finally:
                    self._connections.discard(ours)
                    ours.transport.abort()
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _join(self, *directions: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Forward in both directions until one of them ends."""
        tasks = [asyncio.create_task(self._hand_on(*direction)) for direction in directions]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._flowing.wait()
            writer.write(piece)
            await writer.drain()
