"""The options of a broker. Plain values, without Django; only `Tls.context` opens files."""

from __future__ import annotations

import ipaddress
import math
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.broker.access import Secret, check_distinct
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.ring import RING_BATCHES, RING_BYTES
from enode_django.equeue.broker.space import default_reserve
from enode_django.exceptions import ConfigurationError

__all__ = ["BrokerOptions", "Tls"]

DEFAULT_PORT = 7625
EVERY_WRITE = "every_write"
INTERVAL = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files. With ``client_ca``, clients must present a certificate of that authority.

    For example::

        tls = Tls(certificate="/etc/broker/cert.pem", key="/etc/broker/key.pem")
        options = BrokerOptions(directory=Path("broker"), listen="tcp://0.0.0.0:7625", secret="a secret", tls=tls)
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the SSL context of the server. Raises `ConfigurationError` if the files cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the certificates of the broker cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The options of a broker. Sizes in bytes, times in seconds. Raises `ConfigurationError` for invalid values.

    For example::

        options = BrokerOptions(directory=Path("broker"), listen="tcp://127.0.0.1:7625", flush="every_write")
    """

    directory: Path
    listen: str = f"tcp://127.0.0.1:{DEFAULT_PORT}"
    flush: str = INTERVAL
    flush_interval: float = 0.1
    chunk_size: int = 256 * 1024 * 1024
    retention: Retention = field(default_factory=Retention)
    retention_interval: float = 10.0
    low_watermark: int | None = None
    high_watermark: int | None = None
    ring_batches: int = RING_BATCHES
    ring_bytes: int = RING_BYTES
    """The most bytes of batches that are held in memory, as ``ring_batches`` limits their number. 0: none."""
    allocate: Allocate = divide
    """How the queues of a topic are divided among the members of a group."""
    secret: str | None = field(default=None, repr=False)
    """A secret that has all roles."""
    secrets: tuple[Secret, ...] = ()
    """Further secrets, each with its own roles."""
    max_connections: int = 10_000
    tls: Tls | None = None
    max_unflushed: int = 128 * 1024 * 1024
    """Unflushed bytes above which sends wait for ``patience_of_sends`` seconds, and are then refused."""
    patience_of_sends: float = 5.0
    patience_of_leases: float = 10.0
    """The time after a start in which owners of leases can return before others get their queues."""
    handshake_timeout: float = 10.0
    frame_timeout: float = 30.0
    """The longest pause within a frame. After it the connection is closed."""
    checkpoint_interval: float = 10.0
    checkpoint_bytes: int = 64 * 1024 * 1024
    accept_loss: bool = False
    """Start even if topics, groups and offsets are lost because no checkpoint can be used."""
    reserve: int | None = None
    """Space on the disk for commits, leases and checkpoints when it is full; None: see `default_reserve`."""
    low_space: int | None = None
    """The free space on the disk below which consumed files are deleted before their time; None: ``chunk_size``."""

    @property
    def all_secrets(self) -> tuple[Secret, ...]:
        """``secret`` and ``secrets`` together. Raises `ConfigurationError` for an invalid secret."""
        own = () if self.secret is None else (Secret(name="SECRET", text=self.secret),)
        return (*own, *self.secrets)

    @property
    def chosen_reserve(self) -> int:
        return default_reserve(self.chunk_size) if self.reserve is None else self.reserve

    @property
    def chosen_low_space(self) -> int:
        return self.chunk_size if self.low_space is None else self.low_space

    def __post_init__(self) -> None:
        host, _ = parse_location(self.listen)
        if self.flush not in (EVERY_WRITE, INTERVAL):
            raise ConfigurationError(f"flush must be {EVERY_WRITE!r} or {INTERVAL!r}, got {self.flush!r}")
        for name in (*_ABOVE_0, *_FROM_0, *_OPTIONAL):
            if getattr(self, name) is not None or name not in _OPTIONAL:
                _check_number(name, getattr(self, name), int)
        for name in _TIMES:
            _check_number(name, getattr(self, name), int | float)
        for name, value in zip(("age", "bytes", "messages"), self.retention, strict=False):
            if value is not None:
                _check_number(f"the limit of {name}", value, int | float)
        check_distinct(self.all_secrets)
        if not is_loopback(host) and (not self.all_secrets or self.tls is None):
            raise ConfigurationError(
                f"the broker would listen on {host!r} without a secret and TLS; give it both, or an address of this "
                "machine only, like tcp://127.0.0.1"
            )


_ABOVE_0 = ("chunk_size", "max_unflushed", "checkpoint_bytes", "max_connections")
_FROM_0 = ("ring_batches", "ring_bytes")
_OPTIONAL = ("reserve", "low_space")
_TIMES = ("flush_interval", "retention_interval", "checkpoint_interval", "handshake_timeout", "frame_timeout")


def _check_number(name: str, value: object, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{name} must be a number that is not below 0, got {value!r}")
    if not value and name in (*_ABOVE_0, *_TIMES):
        raise ConfigurationError(f"{name} must be above 0")


def parse_location(location: str) -> tuple[str, int]:
    """Return host and port of ``tcp://host:port``. Raises `ConfigurationError`.

    >>> parse_location("tcp://127.0.0.1")
    ('127.0.0.1', 7625)
    """
    try:
        parts = urlsplit(location)
        port = parts.port
    except (ValueError, AttributeError):
        parts, port = urlsplit(""), None
    if parts.scheme != "tcp" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ConfigurationError(
            f"a broker's location is like 'tcp://127.0.0.1:{DEFAULT_PORT}', got {_without_login(location)!r}"
        )
    return parts.hostname, DEFAULT_PORT if port is None else port


def _without_login(location: object) -> str:
    """Return the location without its login: that of a Redis server can hold a password."""
    login, _, place = str(location).rpartition("@")
    return f"…@{place}" if login else place


def location_of(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
