"""Parse a location into servers and redis-py's options for connecting to them.

One server: ``redis://``, ``rediss://`` (TLS) and ``unix://``, as redis-py reads them. ``redis+sentinel://`` names
Sentinels and their service, ``redis+cluster://`` some nodes of a Redis Cluster; ``rediss+sentinel://`` and
``rediss+cluster://`` are the same with TLS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.connection import parse_url

from enode_django.exceptions import ConfigurationError

Address = tuple[str, int]

SENTINEL_PORT = 26379
CLUSTER_PORT = 6379
_NETLOC = re.compile(r"[^/?#]*")
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}


class SingleLocation(NamedTuple):
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        if "path" in self.options:
            return str(self.options["path"])
        return f"{self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"


class SentinelLocation(NamedTuple):
    """A service behind Sentinels. ``own`` are the options for the Sentinels themselves."""

    sentinels: tuple[Address, ...]
    service: str
    options: Mapping[str, Any]
    own: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.service} of sentinels {_named(self.sentinels)}"


class ClusterLocation(NamedTuple):
    nodes: tuple[Address, ...]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"cluster {_named(self.nodes)}"


Location = SingleLocation | SentinelLocation | ClusterLocation


def parse_location(location: str) -> Location:
    """Parse a location. Raises `ConfigurationError` for a text that names no Redis."""
    # Show neither the location nor a parser's message: both can contain the password.
    scheme, separator, rest = location.partition("://")
    transport = scheme.partition("+")[0]
    if not separator or scheme not in _SCHEMES:
        begins = f"begins with {scheme!r}" if separator else "has no scheme"
        raise ConfigurationError(
            f"the location {begins}; let it begin with one of {', '.join(f'{known}://' for known in _SCHEMES)}, "
            "like 'redis://localhost:6379/0'"
        )
    try:
        return _SCHEMES[scheme](transport, rest)
    except ValueError:
        raise ConfigurationError(
            f"a {scheme}:// location has a part that cannot be read (port, query or brackets); percent-encode what is "
            "special in user and password"
        ) from None


def _single(transport: str, rest: str) -> SingleLocation:
    location = f"{transport}://{rest}"
    options: dict[str, Any] = parse_url(location)  # type: ignore[no-untyped-call]
    path = urlsplit(location).path.strip("/")
    if transport == "unix" and not path:
        raise ConfigurationError("a unix:// location needs a path, like 'unix:///run/redis/redis.sock?db=0'")
    if transport != "unix" and path and not path.isdigit():
        raise ConfigurationError(
            f"the path of a {transport}:// location is the database's number, like 'redis://localhost:6379/0'"
        )
    return SingleLocation(options)


def _sentinel(transport: str, rest: str) -> SentinelLocation:
    addresses, service, query, options = _several(transport, rest, SENTINEL_PORT)
    if not service or "/" in service:
        raise ConfigurationError(
            "a sentinel location ends with the name of the service, like 'redis+sentinel://one:26379,two:26379/mymaster'"
        )
    own = {_OF_SENTINELS[name]: value for name, value in query.items() if name in _OF_SENTINELS}
    return SentinelLocation(addresses, service, options, own)


def _cluster(transport: str, rest: str) -> ClusterLocation:
    addresses, path, _, options = _several(transport, rest, CLUSTER_PORT)
    if path not in ("", "0") or options.pop("db", 0) != 0:
        raise ConfigurationError("a Redis Cluster has database 0 only; leave the number out of the location")
    return ClusterLocation(addresses, options)


def _several(
    transport: str, rest: str, port: int
) -> tuple[tuple[Address, ...], str, Mapping[str, str], dict[str, Any]]:
    """Return addresses, path, query, and redis-py's options from a location with several addresses."""
    # Without the hosts: Python would take them for one, and refuses a bracket inside it.
    netloc = _NETLOC.match(rest)[0]  # type: ignore[index]
    parts = urlsplit(f"{transport}://{rest.removeprefix(netloc)}")
    login, _, hosts = netloc.rpartition("@")
    addresses = tuple(_address(host, port) for host in hosts.split(","))
    query = dict(parse_qsl(parts.query))
    known = urlencode({name: value for name, value in query.items() if name not in _OF_SENTINELS})
    options: dict[str, Any] = parse_url(f"{transport}://{login}@host?{known}")  # type: ignore[no-untyped-call]
    del options["host"]
    return addresses, parts.path.strip("/"), query, options


def _address(host: str, port: int) -> Address:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(host)
    return parts.hostname, parts.port or port


def _named(addresses: tuple[Address, ...]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)


_SCHEMES: Mapping[str, Callable[[str, str], Location]] = {
    "redis": _single,
    "rediss": _single,
    "unix": _single,
    "redis+sentinel": _sentinel,
    "rediss+sentinel": _sentinel,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
}
