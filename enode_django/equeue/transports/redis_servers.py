"""Which server holds a key: one server, the master that Sentinels name, or the nodes of a cluster.

Of a cluster only the map of its slots is asked for; redis-py's own client for clusters sends a command again when its
connection breaks, and a message would be stored twice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.exceptions import ConnectionError, MovedError, RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from enode_django.equeue.transports.redis_location import (
    Address,
    ClusterLocation,
    SentinelLocation,
    SingleLocation,
)
from enode_django.exceptions import ConfigurationError


class Timeouts(NamedTuple):
    """Seconds for connecting, for an answer, and for one that may have to be waited for."""

    connect: float
    quick: float
    blocking: float


class Node:
    """One server. Two pools, so that what blocks never keeps what sends waiting."""

    def __init__(self, name: str, quick: ConnectionPool, blocking: ConnectionPool) -> None:
        self.name = name
        # Any, because redis-py leaves execute_command untyped.
        self.quick: Any = redis.Redis(connection_pool=quick)
        self.blocking: Any = redis.Redis(connection_pool=blocking)
        for client in (self.quick, self.blocking):
            # redis-py would turn every entry into a dictionary; what comes from the wire is all we need.
            for command in ("XREAD", "XRANGE"):
                client.set_response_callback(command, lambda response, **_: response)

    def disconnect(self) -> None:
        for client in (self.quick, self.blocking):
            client.connection_pool.disconnect()


class Servers(Protocol):
    """Safe for threads."""

    name: str

    def node(self, key: str) -> Node:
        """Where a key is, as far as is known. A cluster may be asked for it, which raises redis-py's errors."""

    def failed(self, node: Node, *, is_replica: bool) -> None:
        """A node could not be used; with ``is_replica`` because it is no master any more."""

    def moved(self, node: Node, error: MovedError) -> None:
        """A node says that another one has the key."""

    def close(self) -> None: ...


class SingleServer:
    def __init__(self, location: SingleLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        options = {**client, **location.options}
        self._node = Node(self.name, *(_pool(self.name, known) for known in _both(options, timeouts)))

    def node(self, key: str) -> Node:
        return self._node

    def failed(self, node: Node, *, is_replica: bool) -> None:
        pass

    def moved(self, node: Node, error: MovedError) -> None:
        raise ConfigurationError(f"redis at {self.name} is part of a cluster; use redis+cluster:// for it") from error

    def close(self) -> None:
        self._node.disconnect()


class SentinelServers:
    """Every connection is made to the master that the Sentinels name at that time."""

    def __init__(self, location: SentinelLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        options = {**client, **location.options}
        own = {name: value for name, value in options.items() if name.startswith("ssl")}
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = own["ssl"] = True
        own |= {**_fixed(options, timeouts.connect, timeouts.quick), **location.own}
        try:
            self._sentinel = Sentinel(location.sentinels, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
            pools = [self._pool(location.service, known) for known in _both(options, timeouts)]
        except (TypeError, ValueError, RedisError) as error:
            raise ConfigurationError(f"redis-py cannot use the options given for {self.name}: {error}") from None
        self._node = Node(self.name, *pools)

    def _pool(self, service: str, options: Mapping[str, Any]) -> ConnectionPool:
        pool = SentinelConnectionPool(service, self._sentinel, **options)  # type: ignore[no-untyped-call]
        pool.connection_class(**pool.connection_kwargs)  # takes all options, and does not connect yet
        return pool

    def node(self, key: str) -> Node:
        return self._node

    def failed(self, node: Node, *, is_replica: bool) -> None:
        if is_replica:  # redis-py does not see it within a script's error, and would stay with that server
            node.disconnect()

    def moved(self, node: Node, error: MovedError) -> None:
        raise ConfigurationError(f"redis at {self.name} is part of a cluster; use redis+cluster:// for it") from error

    def close(self) -> None:
        self._node.disconnect()
        self._sentinel.close()


class ClusterServers:
    """``CLUSTER SLOTS`` is asked for before the first use, and again after a node has failed or was moved from."""

    def __init__(self, location: ClusterLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        self._timeouts = timeouts
        self._options = {**client, **location.options}
        self._lock = threading.Lock()
        self._nodes: dict[Address, Node] = {}
        self._slots: dict[int, Address] = {}
        self._is_old = True
        self._known = [*location.nodes]
        self._node_at(location.nodes[0])  # so that unusable options are told now

    def node(self, key: str) -> Node:
        if self._is_old:
            self._ask()
        address = self._slots.get(key_slot(key.encode()))
        if address is None:
            self._is_old = True
            raise ConnectionError(f"no node of the cluster serves the slot of {key!r} now")
        return self._node_at(address)

    def failed(self, node: Node, *, is_replica: bool) -> None:
        self._is_old = True

    def moved(self, node: Node, error: MovedError) -> None:
        host = error.host or node.name.rpartition(":")[0]
        self._slots[int(error.slot_id)] = (str(host), int(error.port))
        self._is_old = True

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.disconnect()

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            host, port = address
            name = f"{host}:{port}"
            options = {**self._options, "host": host, "port": port}
            pools = [_pool(name, known) for known in _both(options, self._timeouts)]
            node = self._nodes.setdefault(address, Node(name, *pools))
        return node

    def _ask(self) -> None:
        """Ask one node after another which slots each has; raises the last one's error."""
        with self._lock:
            if not self._is_old:
                return
            failure: RedisError = ConnectionError("no node is known")
            for address in list(self._known):
                try:
                    answer = self._node_at(address).quick.execute_command("CLUSTER SLOTS")
                except RedisError as error:
                    failure = error
                    # The others first, the next time: whoever is dead may take a whole timeout.
                    self._known.remove(address)
                    self._known.append(address)
                    continue
                self._learn(address, answer)
                return
            raise failure

    def _learn(self, asked: Address, answer: Any) -> None:
        slots: dict[int, Address] = {}
        known: list[Address] = [asked]
        for start, end, *servers in answer:  # the master is the first of them
            addresses = [(host or asked[0], port) for host, port in map(_address, servers)]
            known += (address for address in addresses if address not in known)
            slots.update(dict.fromkeys(range(start, end + 1), addresses[0]))
        # Those of the location stay: all others may have gone when these are there again.
        self._known = known + [address for address in self._known if address not in known]
        self._slots = slots
        self._is_old = False


def _address(server: Any) -> Address:
    host, port = server[0], server[1]
    return host.decode() if isinstance(host, bytes) else str(host or ""), int(port)


def _both(options: Mapping[str, Any], timeouts: Timeouts) -> list[dict[str, Any]]:
    """For the quick pool and the blocking one."""
    return [
        {**options, **_fixed(options, timeouts.connect, timeout)} for timeout in (timeouts.quick, timeouts.blocking)
    ]


def _fixed(options: Mapping[str, Any], connect_timeout: float, timeout: float) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "max_connections": 10_000,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 30,
        "protocol": 2,
        "decode_responses": False,
    }
    if "path" not in options:
        fixed["socket_keepalive"] = True
    return fixed


def _pool(name: str, options: Mapping[str, Any]) -> ConnectionPool:
    try:
        pool = ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)  # takes all options, and does not connect yet
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigurationError(f"redis-py cannot use the options given for {name}: {error}") from None
    return pool
