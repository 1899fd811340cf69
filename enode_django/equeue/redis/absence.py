"""Nodes of a Redis Cluster that do not answer: no caller waits for them until they do."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from functools import partial

from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError

from enode_django.equeue.redis.node import Node
from enode_django.equeue.threads import Threads

logger = logging.getLogger("enode_django.equeue")

PROBE_EVERY = 0.2
"""Seconds between checks whether a node answers again."""


class AbsentNodes:
    """The nodes that do not answer. A thread for each node asks it until it answers, so callers need not.

    Thread-safe, and usable after a fork: a child starts empty, since the threads are its parent's.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._nodes: set[Node] = set()
        self._closed = threading.Event()

    def __contains__(self, node: Node) -> bool:
        self._check_process()
        return node in self._nodes

    def add(self, node: Node, reason: object) -> None:
        """Add a node and start its thread, unless no thread can be started. Safe to call again for the same node."""
        self._check_process()
        with self._lock:
            if node in self._nodes:
                return
            self._nodes.add(node)  # first: its thread ends once it is removed
            probe = partial(self._probe, node, self._closed)
            try:
                Threads(lambda _: self._remove(node)).start(f"equeue-probe-{node.name}", probe)
            except RuntimeError as error:  # too many threads, or the interpreter ends
                self._nodes.discard(node)
                logger.warning(
                    "redis at %s does not answer (%s), and no thread can watch it: %s", node.name, reason, error
                )
                return
        logger.warning("redis at %s does not answer (%s); its queues wait until it does", node.name, reason)

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget all other nodes. Their threads end soon."""
        self._check_process()
        with self._lock:
            self._nodes.intersection_update(nodes)

    def close(self) -> None:
        """End the threads, and count all nodes as present."""
        self._check_process()
        with self._lock:
            self._closed.set()
            self._closed = threading.Event()
            self._nodes.clear()

    def _remove(self, node: Node) -> None:
        with self._lock:
            self._nodes.discard(node)

    def _probe(self, node: Node, closed: threading.Event) -> None:
        while not _answers(node):
            if closed.wait(PROBE_EVERY) or node not in self._nodes:
                return
        if not closed.is_set():
            self._remove(node)
            logger.info("redis at %s answers again", node.name)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._forget()


def _answers(node: Node) -> bool:
    try:
        node.quick.execute_command("PING")
    except RedisError as error:
        return isinstance(error, ResponseError | AuthenticationError | AuthorizationError)  # a refusal is an answer
    return True
