"""Connections to the broker: blocking sockets, one for each call under way."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

from enode_django.equeue.frames import MAX_FRAME, FrameDecoder, decode_message, encode_frame
from enode_django.equeue.transports.broker_address import Address
from enode_django.equeue.wire import HELLO, MAGIC, NONCE_BYTES, PROVE, SPEAK, chosen_version, error_of, is_proof, proof
from enode_django.exceptions import ConfigurationError, EnodeError, MalformedFrame, TransportUnavailable

MOST_IDLE = 16
_JOINED = 16 * 1024
_KEPT = 4 * 1024 * 1024
_TIMEVAL = struct.Struct("@ll")
"""Seconds and microseconds."""


class ConnectionLost(Exception):
    """A call got no answer. ``connected``: the call may have reached the broker."""

    def __init__(self, reason: str, *, connected: bool) -> None:
        super().__init__(reason)
        self.connected = connected


class Connection:
    """A connection for one thread at a time. ``run`` identifies the start of the broker, ``version`` is the protocol
    version that both sides speak."""

    def __init__(self, address: Address, timeout: float) -> None:
        """Connect. Raises `ConnectionLost`, and `ConfigurationError` if the broker rejects this client."""
        # Without limits of items: the broker is trusted, and may report many queues.
        decode = partial(decode_message, max_items=MAX_FRAME)
        self._decoder = FrameDecoder(MAX_FRAME, decode=decode, kept=_KEPT)
        self._numbers = count(1)
        deadline = time.monotonic() + timeout
        self._socket = _connected(address, timeout)
        self._is_plain = address.tls is None
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)
        try:
            self.run, self.version = self._greet(address, deadline)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: Sequence[Any], deadline: float) -> Any:
        """Return the broker's answer. Raises the broker's errors, and `ConnectionLost`: the connection is then over."""
        number = next(self._numbers)
        head, payload = encode_frame((number, name, arguments))
        try:
            self._send(head, payload, deadline)
            answer = self._receive(deadline)
        except BlockingIOError as error:
            raise ConnectionLost("no answer in time", connected=True) from error
        except (OSError, MalformedFrame) as error:
            raise ConnectionLost(str(error) or type(error).__name__, connected=True) from error
        answered, is_good, *values = answer
        if answered not in (number, 0):
            raise ConnectionLost("the broker answers another call", connected=True)
        if not is_good:
            raise error_of(*values)
        return values[0]

    @property
    def is_fresh(self) -> bool:
        """Return True if nothing has arrived since the last answer, in particular no end of the connection."""
        return not self._arrivals.poll(0)

    def shut_down(self) -> None:
        """Make a call under way in another thread fail."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _greet(self, address: Address, deadline: float) -> tuple[int, int]:
        """Return the broker's run, and the protocol version that both sides speak."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        welcome = self.call(HELLO, (MAGIC, address.spoken.oldest, nonce), deadline)
        self._prove(address, nonce, welcome, deadline)
        version = chosen_version(address.spoken, welcome.get("versions"))
        if version != address.spoken.oldest:
            self.call(SPEAK, (version,), deadline)
        return int(welcome["run"]), version

    def _prove(self, address: Address, nonce: bytes, welcome: Mapping[str, Any], deadline: float) -> None:
        """Prove the secret to a broker that asks for it, and check the broker's proof."""
        if welcome["secret"]:
            if address.secret is None:
                raise ConfigurationError(f"the broker at {address.location} asks for a secret; give the transport one")
            nonces = nonce, welcome["nonce"]
            answer = self.call(PROVE, (proof(address.secret, "client", *nonces),), deadline)
            if not is_proof(answer, proof(address.secret, "broker", *nonces)):
                raise ConfigurationError(f"the broker at {address.location} does not know the secret")
        elif address.secret is not None:
            raise ConfigurationError(f"the broker at {address.location} has no secret, so it may be anyone's")

    def _send(self, head: bytes, payload: bytes, deadline: float) -> None:
        for part in (head + payload,) if len(payload) <= _JOINED else (head, payload):
            rest = memoryview(part)
            while rest:
                self._give_time(socket.SO_SNDTIMEO, deadline)
                rest = rest[self._socket.send(rest) :]

    def _receive(self, deadline: float) -> Any:
        while True:
            self._give_time(socket.SO_RCVTIMEO, deadline)
            received = self._socket.recv_into(self._decoder.room())
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            messages = self._decoder.received(received)
            if messages:
                return messages[0]

    def _give_time(self, option: int, deadline: float) -> None:
        """Set the time left for the next send or receive. Without TLS the kernel keeps it: a timeout of Python costs
        two more system calls each time, and each may pass the interpreter to another thread of a busy process."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        if self._is_plain:
            timeval = divmod(int(left * 1e6) + 1, 1_000_000)  # 0 means no timeout
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*timeval))
        else:
            self._socket.settimeout(left)


Within = Callable[[Connection], AbstractContextManager[object]]


class Sender:
    """Numbers the sends of one thread at a time. The broker remembers the newest sends of each sender, so a repeated
    send is recognized, however many sends of other threads came between."""

    def __init__(self) -> None:
        self.producer = uuid.uuid4().bytes
        self.sequences = count(1)


class Wakes:
    """Makes calls that wait in other threads fail at once. Each thread waits in at most one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Connection] = {}
        self._woken: set[int] = set()

    def wake(self, thread: int) -> None:
        """Wake a thread. If it does not wait now, its next wait ends at once."""
        with self._lock:
            self._woken.add(thread)
            if thread in self._waiting:
                self._waiting[thread].shut_down()

    @contextlib.contextmanager
    def waiting(self, connection: Connection) -> Iterator[None]:
        """Let `wake` shut the connection down while the calling thread is in the block. Another thread may use the
        connection afterwards."""
        thread = threading.get_ident()
        with self._lock:
            self._waiting[thread] = connection
            if thread in self._woken:
                connection.shut_down()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[thread]

    def has_woken(self) -> bool:
        """Return True if the calling thread was woken since it called `forget`."""
        return threading.get_ident() in self._woken

    def forget(self) -> None:
        """Clear the calling thread's wake-up after its wait."""
        with self._lock:
            self._woken.discard(threading.get_ident())


class Pool:
    """The idle connections of one process. Thread-safe; a forked child makes its own."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.pid = os.getpid()
        self.is_closed = False
        self._address = address
        self._timeout = timeout
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._senders: list[Sender] = []

    @contextlib.contextmanager
    def sender(self) -> Iterator[Sender]:
        """Yield a sender that no other thread uses meanwhile. Senders are reused."""
        try:
            sender = self._senders.pop()
        except IndexError:
            sender = Sender()
        try:
            yield sender
        finally:
            self._senders.append(sender)

    def call(
        self, name: str, arguments: Sequence[Any], *, wait: float = 0.0, within: Within = contextlib.nullcontext
    ) -> tuple[Any, int]:
        """Return the answer, and the run of the broker that gave it. ``wait`` is added to the seconds that the answer
        may take. The call is made in the context that ``within`` returns, which ends before another thread may get the
        connection."""
        connection = self._take()
        try:
            with within(connection):
                value = connection.call(name, arguments, time.monotonic() + self._timeout + wait)
        except BaseException as error:
            self._busy.discard(connection)
            if _leaves_usable(error):
                self._put(connection)
            else:
                connection.close()
            raise
        self._busy.discard(connection)
        self._put(connection)
        return value, connection.run

    def close(self) -> None:
        self.is_closed = True
        while (connection := self._pop_idle()) is not None:
            connection.close()
        for busy in list(self._busy):
            busy.shut_down()

    def _take(self) -> Connection:
        while (idle := self._pop_idle()) is not None:
            if idle.is_fresh:
                self._busy.add(idle)
                return idle
            idle.close()
        connection = Connection(self._address, self._timeout)
        self._busy.add(connection)
        return connection

    def _pop_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _put(self, connection: Connection) -> None:
        if len(self._idle) >= MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        if self.is_closed:
            self.close()


def unreachable(location: str, reason: object) -> TransportUnavailable:
    return TransportUnavailable(
        f"the broker at {location} cannot be reached ({reason}); start it with manage.py runbroker or runprocessors "
        "--with-broker, or name another one in ENODE['QUEUE']"
    )


def _connected(address: Address, timeout: float) -> socket.socket:
    try:
        plain = socket.create_connection((address.host, address.port), timeout)
    except OSError as error:
        raise ConnectionLost(str(error), connected=False) from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is None:
            plain.settimeout(None)
            return plain
        return address.tls.wrap_socket(plain, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise ConfigurationError(
            f"the broker at {address.location} shows a certificate that is not trusted ({error.verify_message}); give "
            "the transport the right authority as tls['ca']"
        ) from error
    except OSError as error:
        plain.close()
        raise ConnectionLost(str(error), connected=False) from error


def _leaves_usable(error: BaseException) -> bool:
    """Return True if a call that raised this error has read its answer."""
    return isinstance(error, EnodeError) and not isinstance(error, MalformedFrame | ConfigurationError)
