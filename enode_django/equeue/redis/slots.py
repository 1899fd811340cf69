"""The map of a Redis Cluster: which node has which slot, and which node to ask for that. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from enode_django.equeue.redis.location import Address


class SlotMap:
    """Made of what nodes tell (``CLUSTER SLOTS``) and of what they refuse (``MOVED``). Safe for threads.

    A refusal outranks what a node tells, since that node may be cut off from the others, until a map agrees with it,
    or the node that it leads to cannot be used. For the same reason another node is asked each time.
    """

    def __init__(self, nodes: Sequence[Address]) -> None:
        self.is_known = False
        self._location = nodes
        self._to_ask = [*nodes]
        self._slots: dict[int, Address] = {}
        self._moved: dict[int, Address] = {}
        self._lock = threading.Lock()

    @property
    def to_ask(self) -> list[Address]:
        """The nodes to ask for the map, the best one first."""
        return [*self._to_ask]

    def owner(self, slot: int) -> Address | None:
        return self._moved.get(slot) or self._slots.get(slot)

    def was_asked(self, address: Address) -> None:
        """The others first, the next time, whether it has answered or not."""
        with self._lock:
            if address in self._to_ask:
                self._to_ask.remove(address)
                self._to_ask.append(address)

    def learn(self, asked: Address, answer: Any) -> None:
        """Take what a node has answered to ``CLUSTER SLOTS``."""
        slots: dict[int, Address] = {}
        told: dict[Address, None] = {}
        for start, end, *servers in answer:  # the master is the first of them
            addresses = [(host or asked[0], port) for host, port in map(_address, servers)]
            told.update(dict.fromkeys(addresses))
            slots.update(dict.fromkeys(range(start, end + 1), addresses[0]))
        with self._lock:
            # Those of the location stay: all others may have gone when these are there again.
            stay = [address for address in self._to_ask if address in told or address in self._location]
            self._to_ask = stay + [address for address in told if address not in stay]
            self._slots = slots
            self._moved = {slot: at for slot, at in self._moved.items() if slots.get(slot) != at}
            self.is_known = True

    def moved(self, slot: int, owner: Address) -> None:
        """Take what a node has said that refused a command. The owner that it names is the next one to be asked."""
        with self._lock:
            self._moved[slot] = owner
            self._to_ask = [owner, *(address for address in self._to_ask if address != owner)]

    def cannot_be_used(self, address: Address) -> None:
        with self._lock:
            if address in self._moved.values():
                self._moved = {slot: owner for slot, owner in self._moved.items() if owner != address}


def _address(server: Any) -> Address:
    host, port = server[0], server[1]
    return host.decode() if isinstance(host, bytes) else str(host or ""), int(port)
