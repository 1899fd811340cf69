"""The slot map of a Redis Cluster: the node of each slot, and the nodes to ask for the map. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from enode_django.equeue.redis.location import Address


class SlotMap:
    """Slots as nodes report them (``CLUSTER SLOTS``) and as their refusals correct them (``MOVED``). Thread-safe.

    A refusal outranks a report, whose node may be cut off from the others, until a report agrees with it or the node
    that it names is unusable. For the same reason each report is requested from another node.
    """

    def __init__(self, nodes: Sequence[Address]) -> None:
        self.is_known = False
        self._location = nodes
        self.to_ask = [*nodes]
        """The nodes to ask for the map, the best one first."""
        self._slots: dict[int, Address] = {}
        self._moved: dict[int, Address] = {}
        self._lock = threading.Lock()

    def owner(self, slot: int) -> Address | None:
        return self._moved.get(slot) or self._slots.get(slot)

    @property
    def known(self) -> set[Address]:
        """The nodes that are in use, or may be."""
        with self._lock:
            return {*self.to_ask, *self._moved.values()}

    def was_asked(self, address: Address) -> None:
        """Move a node to the end of the nodes to ask, whether it has answered or not."""
        with self._lock:
            if address in self.to_ask:
                self.to_ask.remove(address)
                self.to_ask.append(address)

    def learn(self, asked: Address, answer: Any) -> None:
        """Store a node's answer to ``CLUSTER SLOTS``."""
        slots: dict[int, Address] = {}
        told: dict[Address, None] = {}
        for start, end, *servers in answer:  # the master is the first of them
            addresses = [(host or asked[0], port) for host, port in map(_address, servers)]
            told.update(dict.fromkeys(addresses))
            slots.update(dict.fromkeys(range(start, end + 1), addresses[0]))
        with self._lock:
            # Nodes of the location stay: they may be back when all others are gone.
            stay = [address for address in self.to_ask if address in told or address in self._location]
            self.to_ask = stay + [address for address in told if address not in stay]
            self._slots = slots
            self._moved = {slot: at for slot, at in self._moved.items() if slots.get(slot) != at}
            self.is_known = True

    def moved(self, slot: int, owner: Address) -> None:
        """Store the refusal of a command. The owner that it names is asked next."""
        with self._lock:
            self._moved[slot] = owner
            self.to_ask = [owner, *(address for address in self.to_ask if address != owner)]

    def cannot_be_used(self, address: Address) -> None:
        with self._lock:
            if address in self._moved.values():
                self._moved = {slot: owner for slot, owner in self._moved.items() if owner != address}


def _address(server: Any) -> Address:
    host, port = server[0], server[1]
    return host.decode() if isinstance(host, bytes) else str(host or ""), int(port)
