"""The server of a key: one server, the master that Sentinels name, or a node of a cluster.

A cluster is only asked for its slot map. redis-py's cluster client is not used: it repeats a command whose connection
broke, and a message would be stored twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from redis.connection import ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.exceptions import ConnectionError, MovedError, RedisError
from redis.sentinel import Sentinel, SentinelConnectionPool

from enode_django.equeue.redis.absence import AbsentNodes
from enode_django.equeue.redis.location import Address, ClusterLocation, SentinelLocation, SingleLocation
from enode_django.equeue.redis.node import Node, Timeouts, both_options, fixed_options, make_pool
from enode_django.equeue.redis.slots import SlotMap
from enode_django.exceptions import ConfigurationError

WAITED_IN_VAIN = 0.1
"""Seconds of waiting after which an error means that a node does not answer. An immediate refusal costs no time."""
ASK_AGAIN = 0.5
"""Seconds between checks whether another node has the slots of an unresponsive one."""


class _OneNode:
    name: str
    _node: Node

    def node(self, key: str) -> Node:
        return self._node

    def failed(self, node: Node, *, is_replica: bool, waited: float = 0.0) -> None:
        if is_replica:  # new connections find the master; redis-py would keep those to this server
            node.disconnect()

    def moved(self, node: Node, error: MovedError) -> None:
        raise ConfigurationError(f"redis at {self.name} is part of a cluster; use redis+cluster:// for it") from error

    def close(self) -> None:
        self._node.disconnect()


class SingleServer(_OneNode):
    def __init__(self, location: SingleLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        options = {**client, **location.options}
        self._node = Node(self.name, *(make_pool(self.name, known) for known in both_options(options, timeouts)))


class SentinelServers(_OneNode):
    """A server behind Sentinels. Every connection is made to the master that they name at that time."""

    def __init__(self, location: SentinelLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        options = {**client, **location.options}
        own = {name: value for name, value in options.items() if name.startswith("ssl")}
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = own["ssl"] = True
        own |= {**fixed_options(options, timeouts.connect, timeouts.quick), **location.own}
        try:
            self._sentinel = Sentinel(location.sentinels, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
            pools = [self._pool(location.service, known) for known in both_options(options, timeouts)]
        except (TypeError, ValueError, RedisError) as error:
            raise ConfigurationError(f"redis-py cannot use the options given for {self.name}: {error}") from None
        self._node = Node(self.name, *pools)

    def _pool(self, service: str, options: Mapping[str, Any]) -> ConnectionPool:
        pool = SentinelConnectionPool(service, self._sentinel, **options)  # type: ignore[no-untyped-call]
        pool.connection_class(**pool.connection_kwargs)  # checks the options without connecting
        return pool

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinel.sentinels:  # `Sentinel` itself can be closed since redis-py 6 only
            sentinel.close()


class ClusterServers:
    """The nodes of a cluster. Asks for ``CLUSTER SLOTS`` before the first use, and after a failure or a moved slot.
    Thread-safe.

    A node that did not answer a waiting caller is not used until it answers again, so that it does not delay other
    calls.
    """

    def __init__(self, location: ClusterLocation, timeouts: Timeouts, client: Mapping[str, Any]) -> None:
        self.name = location.name
        self._timeouts = timeouts
        self._options = {**client, **location.options}
        self._asking = threading.Lock()
        self._nodes: dict[Address, Node] = {}
        self._map = SlotMap(location.nodes)
        self._is_old = True
        self._asked_at = 0.0
        self._absent = AbsentNodes()
        self._node_at(location.nodes[0])  # to report unusable options now

    def node(self, key: str) -> Node:
        """Return the server of a key, as currently known. May ask the cluster, which raises redis-py's errors. Raises
        `ConnectionError` for a node that is known not to answer."""
        if self._is_old:
            self._ask()
        address = self._map.owner(key_slot(key.encode()))
        if address is None:
            self._is_old = True
            raise ConnectionError(f"no node of the cluster serves the slot of {key!r} now")
        node = self._node_at(address)
        if node in self._absent:
            self._is_old |= time.monotonic() >= self._asked_at + ASK_AGAIN  # a replica may have replaced it
            raise ConnectionError(f"{node.name} does not answer")
        return node

    def failed(self, node: Node, *, is_replica: bool, waited: float = 0.0) -> None:
        """Note that a node is unusable; with ``is_replica`` because it is not a master any longer. ``waited``: seconds
        until its connection failed."""
        host, _, port = node.name.rpartition(":")
        self._map.cannot_be_used((host, int(port)))
        if waited >= WAITED_IN_VAIN:
            self._absent.add(node, f"for {waited:.1f} s")
        self._is_old = True  # last: if a new map has dropped the node meanwhile, the next one does it again

    def moved(self, node: Node, error: MovedError) -> None:
        """Note a node's refusal that names another node as the owner of the key."""
        host = error.host or node.name.rpartition(":")[0]
        self._map.moved(int(error.slot_id), (str(host), int(error.port)))
        self._is_old = True

    def close(self) -> None:
        self._absent.close()
        for node in list(self._nodes.values()):
            node.disconnect()

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            host, port = address
            name = f"{host}:{port}"
            options = {**self._options, "host": host, "port": port}
            pools = [make_pool(name, known) for known in both_options(options, self._timeouts)]
            node = self._nodes.setdefault(address, Node(name, *pools))
        return node

    def _ask(self) -> None:
        """Ask the nodes for the slot map, one after the other; raise the last node's error. While another thread asks,
        an existing map is used."""
        if not self._asking.acquire(blocking=not self._map.is_known):
            return
        try:
            if self._is_old:
                self._ask_some_node()
                self._is_old = False
                self._asked_at = time.monotonic()
        finally:
            self._asking.release()

    def _ask_some_node(self) -> None:
        failure: RedisError = ConnectionError("no node of the cluster answers")
        for address in [*self._map.to_ask]:
            node = self._node_at(address)
            if node in self._absent:
                continue
            self._map.was_asked(address)
            began = time.monotonic()
            try:
                answer = node.quick.execute_command("CLUSTER SLOTS")
            except RedisError as error:
                failure = error
                if (waited := time.monotonic() - began) >= WAITED_IN_VAIN:
                    self._absent.add(node, f"for {waited:.1f} s")
            else:
                self._map.learn(address, answer)
                self._forget_gone()
                return
        raise failure

    def _forget_gone(self) -> None:
        """Forget the nodes that have left the cluster. Where each start of a server has a new address, there would be
        ever more, and a thread for each that does not answer. Calls under way at them are not disturbed."""
        known = self._map.known
        for address in [address for address in list(self._nodes) if address not in known]:
            self._nodes.pop(address).disconnect_idle()
        self._absent.keep(list(self._nodes.values()))


Servers: TypeAlias = SingleServer | SentinelServers | ClusterServers
"""The servers of a location."""
