"""One connection of the broker: bytes in, answers out."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from enode_django.equeue import wire
from enode_django.equeue.arrivals import Arrivals
from enode_django.equeue.broker.access import Secret, proven
from enode_django.equeue.broker.calls import Call
from enode_django.equeue.broker.handlers import Handlers
from enode_django.equeue.broker.requests import REQUESTS, decode_request
from enode_django.equeue.frames import MAX_FRAME, FrameDecoder, encode_frame
from enode_django.equeue.wire import (
    HELLO,
    MAGIC,
    MAX_HANDSHAKE_FRAME,
    NONCE_BYTES,
    PROVE,
    SPEAK,
    check_newest,
    check_oldest,
    error_values,
    proof,
)
from enode_django.exceptions import ConfigurationError, EnodeError, MalformedFrame, TransportUnavailable, shown

logger = logging.getLogger(__name__)

MOST_UNDER_WAY = 64
"""Requests of one connection that may wait for their answers; further ones are not begun, and no more are read."""
_JOINED = 16 * 1024
_MOST_JOINED = 64 * 1024


class Session(asyncio.BufferedProtocol):
    """A connection. Its requests are begun in their order. While the client does not read its answers, its requests are
    not read.

    The session is in ``sessions`` while it is connected (with TLS, from the end of its handshake on), and in
    ``arrivals`` until its own handshake is done. With ``secrets`` a client has to know one of them. Above ``most``
    sessions the oldest other one of ``arrivals`` is closed; if there is none, the new one is refused.
    """

    def __init__(
        self,
        handlers: Handlers,
        secrets: Sequence[Secret],
        run: int,
        sessions: set[Session],
        *,
        most: int,
        arrivals: Arrivals[Session],
    ) -> None:
        self._handlers = handlers
        self._secrets = secrets
        self._most = most
        self._arrivals = arrivals
        self._secret: Secret | None = None
        self._run = run
        self._sessions = sessions
        self._decoder = FrameDecoder(MAX_HANDSHAKE_FRAME, decode=decode_request)
        self._nonces: tuple[bytes, bytes] | None = None
        self._is_open = False
        self._version = 0
        self._requests: deque[Any] = deque()
        self._calls: set[Call] = set()
        self.has_room = True
        """False while the client does not read its answers."""
        self._reads = True
        self._ends = False
        self._is_working = False
        self._joined = bytearray()
        self._begun = self._since = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport | None = None

    @property
    def client(self) -> str:
        """The address of the peer's host; "unknown" if it is gone."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if peer else "unknown"

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._has_room():
            self._refuse(TransportUnavailable(f"the broker has {self._most} connections, as many as it may; try later"))
            return
        self._sessions.add(self)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _has_room(self) -> bool:
        """Add the session to the arrivals, and close an older one if need be. Return False if there is no room."""
        crowded_out = self._arrivals.add(self, self.client)
        is_full = crowded_out is None and len(self._sessions) >= self._most
        if is_full:
            crowded_out = self._arrivals.take_oldest(self)
        if crowded_out is not None:
            crowded_out.make_room()
        return crowded_out is not None or not is_full

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    def buffer_updated(self, count: int) -> None:
        self._since = asyncio.get_running_loop().time()
        try:
            self._requests += self._decoder.received(count)
        except MalformedFrame as error:
            self._refuse(error)
        else:
            self._work()

    def pause_writing(self) -> None:
        self.has_room = False

    def resume_writing(self) -> None:
        self.has_room = True
        for call in list(self._calls):
            if self.has_room and call.on_room is not None:
                call.on_room()
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._sessions.discard(self)
        self._arrivals.discard(self)
        self._requests.clear()
        self._joined.clear()
        calls, self._calls = self._calls, set()
        for call in calls:
            call.drop()

    # -- requests -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._ends:
            self._requests.clear()
        self._is_working = True
        try:
            while self._may_begin():
                self._begin(self._requests.popleft())
        finally:
            self._is_working = False
            self._send_joined()
        if self._transport is not None and self._reads is bool(self._requests):
            self._reads = not self._reads
            self._transport.resume_reading() if self._reads else self._transport.pause_reading()

    def _may_begin(self) -> bool:
        has_room = self.has_room and len(self._calls) < MOST_UNDER_WAY
        return bool(self._requests) and has_room and self._transport is not None

    def _begin(self, message: Any) -> None:
        match message:
            case [int() as number, str() as name, list() as values, *_]:
                pass
            case _:
                self._refuse(MalformedFrame(f"a request is a number, a name and its arguments, got {shown(message)}"))
                return
        if not self._is_open or name == SPEAK or self._version < wire.SPOKEN.oldest:
            self._shake_hands(number, name, values)
            return
        call = Call(self, number)
        self._calls.add(call)
        try:
            if self._secret is not None and name in REQUESTS:
                self._secret.check(name, REQUESTS[name].role)
            self._handlers.handle(call, name, values)
        except EnodeError as error:
            call.fail(error)
        except Exception:
            call.fail_by_defect(name)

    def answer(self, call: Call, value: Any) -> None:
        self._calls.discard(call)
        try:
            self._write((call.number, True, value))
        except MalformedFrame as error:
            self._write((call.number, False, *error_values(error)))
        self._go_on()

    def fail(self, call: Call, error: EnodeError) -> None:
        self._calls.discard(call)
        self._write((call.number, False, *error_values(error)))
        self._go_on()

    def _go_on(self) -> None:
        if self._ends:
            self.end()
        elif self._requests and not self._is_working:
            asyncio.get_running_loop().call_soon(self._work)

    def _write(self, message: Any) -> None:
        if self._transport is None:
            return
        head, payload = encode_frame(message)
        if len(payload) <= _JOINED:
            self._joined += head
            self._joined += payload
            # Answers to requests that came together are sent together: sending costs more than the rest of a small one.
            if not self._is_working or len(self._joined) >= _MOST_JOINED:
                self._send_joined()
        else:
            self._send_joined()
            self._transport.write(head)
            self._transport.write(memoryview(payload))  # asyncio copies only what the socket does not take

    def _send_joined(self) -> None:
        joined, self._joined = self._joined, bytearray()
        if joined and self._transport is not None:
            self._transport.write(joined)

    # -- the handshake --------------------------------------------------------------------------------------------

    def _shake_hands(self, number: int, name: str, values: list[Any]) -> None:
        try:
            answer = self._agree(name, values) if self._is_open else self._greet(name, values)
        except EnodeError as error:
            self._refuse(error, number)
        else:
            self._write((number, True, answer))

    def _greet(self, name: str, values: list[Any]) -> Any:
        if name == HELLO and self._nonces is None:
            return self._hello(values)
        if name == PROVE and self._nonces is not None:
            return self._prove(values)
        raise MalformedFrame("a connection begins with a hello")

    def _hello(self, values: list[Any]) -> dict[str, Any]:
        match values:
            case [str() as magic, int() as version, bytes() as nonce, *_] if (
                magic == MAGIC and len(nonce) == NONCE_BYTES
            ):
                check_newest(version, wire.SPOKEN)
            case _:
                raise MalformedFrame(f"a hello names the protocol, its version and a nonce, got {shown(values)}")
        self._version = version
        self._nonces = nonce, secrets.token_bytes(NONCE_BYTES)
        if not self._secrets:
            self._open()
        return {"run": self._run, "nonce": self._nonces[1], "secret": bool(self._secrets), "versions": wire.SPOKEN}

    def _prove(self, values: list[Any]) -> bytes:
        assert self._nonces is not None
        self._secret = proven(self._secrets, values[0] if values else None, self._nonces)
        if self._secret is None:
            raise ConfigurationError("the broker does not take this secret; give client and broker the same one")
        self._open()
        return proof(self._secret.text, "broker", *self._nonces)

    def _agree(self, name: str, values: list[Any]) -> int:
        """Take the version that the client chooses by `SPEAK`. Refuse one that this broker does not speak."""
        version = values[0] if name == SPEAK and values else self._version
        if not isinstance(version, int):
            raise MalformedFrame(f"speak names a version of the protocol, got {shown(values)}")
        check_newest(version, wire.SPOKEN)
        check_oldest(version, wire.SPOKEN)
        self._version = version
        return version

    def _open(self) -> None:
        self._is_open = True
        self._arrivals.discard(self)
        self._decoder.limit = MAX_FRAME

    # -- ends -----------------------------------------------------------------------------------------------------

    def check_silence(self, now: float, *, handshake: float, frame: float) -> None:
        """Close a connection whose handshake is not done in time, or that has stopped within a frame."""
        if not self._is_open and now - self._begun > handshake:
            self._refuse(MalformedFrame(f"no hello came within {handshake} seconds"))
        elif self._decoder.is_partial and self._reads and now - self._since > frame:
            self._refuse(MalformedFrame(f"half a frame came, and nothing more for {frame} seconds"))

    def make_room(self) -> None:
        """Close a connection whose handshake is not done, in favour of others."""
        self._sessions.discard(self)
        self._refuse(TransportUnavailable("no hello came, and others want to connect; try again"))

    def end(self) -> None:
        """Begin no new request, and close when those under way are answered."""
        self._ends = True
        if not self._calls:
            self.close()

    def close(self) -> None:
        """Send the answers that are still held back, and close."""
        self._send_joined()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, error: EnodeError, number: int = 0) -> None:
        """Send the error, and close: what follows cannot be understood, or must not be handled."""
        if self._transport is not None:
            logger.warning("closed the connection of %s: %s", self._transport.get_extra_info("peername"), error)
            self._write((number, False, *error_values(error)))
            self.close()
        self._requests.clear()
