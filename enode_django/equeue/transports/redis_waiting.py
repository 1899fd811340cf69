"""Waiting for messages until they come or somebody wakes the thread that waits.

One command waits at all queues that one server has. A cluster takes no command with keys of several slots, so each
queue is waited at over a connection of its own, until the first of them has something: then the others are told to give
up, and what they have found meanwhile counts too.
"""

from __future__ import annotations

import selectors
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, MovedError, TimeoutError

from enode_django.equeue.transports.redis_connection import Command, RedisConnection
from enode_django.equeue.transports.redis_servers import Node
from enode_django.equeue.transports.redis_wakes import Wakeup

GIVING_UP = 0.05
"""Seconds after which a connection that was told to give up is told again: it may have been too early."""


def read_waking(connection: RedisConnection, command: Command, *, key: str, wakeup: Wakeup) -> Any:
    """Run an XREAD that blocks; returns what it has found, and None if that is nothing or ``wakeup`` has ended it."""
    return connection.at_node(key, partial(_read_waking, command=command, wakeup=wakeup))


def _read_waking(node: Node, *, command: Command, wakeup: Wakeup) -> Any:
    pool = node.blocking.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_command(*command)
        one = _Waiting(node, connection, 0, connection._sock)
        if _wait_for_one([one], wakeup):
            return connection.read_response(disable_decoding=True)
        connection.disconnect()  # which ends the command, too
        return None
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


class _Waiting(NamedTuple):
    node: Node
    connection: Any
    client: int
    socket: Any

    def has_answer(self, wait: float) -> bool:
        if self.connection._sock is not self.socket:  # redis-py would connect anew, where nothing is to come
            raise ConnectionError("the connection was closed")
        return bool(self.connection.can_read(wait))


def read_first(connection: RedisConnection, reads: Mapping[str, Command], wakeup: Wakeup) -> list[Any]:
    """Run blocking XREADs, each by its key; returns what the first has found, and the others with it.

    Blocks as long as they do, or until ``wakeup`` is woken.
    """
    waiting: list[_Waiting] = []
    with connection.border():
        try:
            commands = list(reads.values())
            for node, places in connection.nodes(list(reads)).items():
                with connection.using(node):
                    for place in places:
                        waiting.append(_begin(node, commands[place]))
            _wait_for_one(waiting, wakeup)
            return _answers(connection, waiting)
        except BaseException:
            for one in waiting:
                one.connection.disconnect()
            raise
        finally:
            for one in waiting:
                one.node.blocking.connection_pool.release(one.connection)


def _begin(node: Node, command: Command) -> _Waiting:
    pool = node.blocking.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands([("CLIENT", "ID"), command]))
        return _Waiting(node, connection, connection.read_response(), connection._sock)
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise


def _wait_for_one(waiting: Collection[_Waiting], wakeup: Wakeup) -> bool:
    """Return False if nothing has come before ``wakeup`` was woken. Raises redis-py's `TimeoutError`."""
    if any(one.has_answer(0) for one in waiting):  # it may have been received with what came before it
        return True
    with selectors.PollSelector() as selector:  # which, other than epoll, always hears that another thread closes
        for one in waiting:
            selector.register(one.socket, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        if not selector.select(max(one.connection.socket_timeout for one in waiting)):
            raise TimeoutError("no answer in time")
    return not wakeup.is_woken or any(one.has_answer(0) for one in waiting)


def _answers(connection: RedisConnection, waiting: Collection[_Waiting]) -> list[Any]:
    found: list[Any] = []
    for one in waiting:
        with connection.using(one.node):
            while not one.has_answer(0):
                one.node.quick.execute_command("CLIENT UNBLOCK", one.client)
                if one.has_answer(GIVING_UP):
                    break
            try:
                found += one.connection.read_response(disable_decoding=True) or ()
            except MovedError as error:
                connection.moved(one.node, error)
    return found
