"""Wait for messages until they arrive or another thread wakes the waiting one.

One command waits for all queues of one server. A cluster takes no command with keys of several slots, so each queue is
waited for on a connection of its own. When the first has messages, the other commands are unblocked, and their
messages are returned, too.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, MovedError, RedisError, TimeoutError

from enode_django.equeue.redis.connection import Command, RedisConnection
from enode_django.equeue.redis.node import Node
from enode_django.equeue.redis.wakes import Wakeup

GIVING_UP = 0.05
"""Seconds after which a command is unblocked again: the first time may have been too early."""


def read_waking(connection: RedisConnection, command: Command, closings: int, *, key: str, wakeup: Wakeup) -> Any:
    """Run a blocking XREAD. Return its answer; None if there is none or ``wakeup`` has ended it.

    Raises `TransportUnavailable`, also if the transport was closed since the number of closings was ``closings``.
    """

    def read(node: Node) -> Any:
        pool = node.quick.connection_pool  # the quick pool will do: this module does the waiting
        own = pool.get_connection()
        try:
            own.send_command(*command)
            one = _Waiting(node, own, 0, _socket_of(own))
            connection.check_not_closed_since(closings)  # only now: an earlier close has not closed this connection
            if _wait_for_one([one], wakeup):
                return one.answer()
            own.disconnect()  # which ends the command, too
            return None
        except BaseException:
            own.disconnect()
            raise
        finally:
            pool.release(own)

    return connection.at_node(key, read)


class _Waiting(NamedTuple):
    node: Node
    connection: Any
    client: int
    socket: Any

    def has_answer(self, wait: float = 0) -> bool:
        """Return True if an answer can be read. Raises redis-py's errors."""
        return bool(self._ask(partial(self.connection.can_read, wait)))

    def has_answer_or_error(self) -> bool:
        try:
            return self.has_answer()
        except RedisError:
            return True

    def answer(self) -> Any:
        return self._ask(partial(self.connection.read_response, disable_decoding=True))

    def _ask(self, question: Callable[[], Any]) -> Any:
        self._check()
        try:
            return question()
        except (AttributeError, TypeError, ValueError):  # redis-py's, if another thread closes the connection meanwhile
            self._check()
            raise

    def _check(self) -> None:
        if _socket_of(self.connection) is not self.socket:  # redis-py would reconnect, and wait for nothing
            raise ConnectionError("the connection was closed")


def _socket_of(connection: Any) -> Any:
    # A private name of redis-py, the only one used here: no public one lets a thread wait for one of several
    # connections (`can_read` waits for one), or for a connection and a pipe.
    return connection._sock


def read_first(connection: RedisConnection, reads: Mapping[str, Command], closings: int, wakeup: Wakeup) -> list[Any]:
    """Run blocking XREADs, each given by its key. Return the results of the first to finish, and those of the others so
    far.

    Blocks as long as they do, or until ``wakeup`` is woken. Unusable servers are left out; if all are unusable, raises
    the error of one. ``closings`` as in `read_waking`.
    """
    waiting: list[_Waiting] = []
    with connection.border():
        try:
            failure = _begin_each(connection, reads, waiting)
            if failure is not None and not waiting:
                raise failure
            connection.check_not_closed_since(closings)
            with suppress(TimeoutError):  # servers that do not answer are found below
                _wait_for_one(waiting, wakeup)
            return _answers(connection, waiting)
        except BaseException:
            for one in waiting:
                one.connection.disconnect()
            raise
        finally:
            for one in waiting:
                one.node.quick.connection_pool.release(one.connection)


def _begin_each(
    connection: RedisConnection, reads: Mapping[str, Command], waiting: list[_Waiting]
) -> RedisError | None:
    """Add the reads that have begun to ``waiting``. Return an error of one that has not."""
    commands = list(reads.values())
    nodes, failures = connection.nodes(list(reads))
    failure = next(iter(failures.values()), None)
    for node, places in nodes.items():
        try:
            with connection.using(node):
                for place in places:
                    waiting.append(_begin(node, commands[place]))
        except RedisError as error:
            failure = error
    return failure


def _begin(node: Node, command: Command) -> _Waiting:
    pool = node.quick.connection_pool  # the quick pool will do: this module does the waiting
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands([("CLIENT", "ID"), command]))
        return _Waiting(node, connection, connection.read_response(), _socket_of(connection))
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise


def _wait_for_one(waiting: Collection[_Waiting], wakeup: Wakeup) -> bool:
    """Return False if nothing has arrived before ``wakeup`` was woken. Raises redis-py's `TimeoutError`."""
    if any(one.has_answer_or_error() for one in waiting):  # it may have been received with an earlier answer
        return True
    with selectors.PollSelector() as selector:  # unlike epoll, it always notices a close by another thread
        try:
            for one in waiting:
                selector.register(one.socket, selectors.EVENT_READ)
        except ValueError as error:  # the socket is closed
            raise ConnectionError("the connection was closed") from error
        selector.register(wakeup, selectors.EVENT_READ)
        if not selector.select(max(one.node.longest_wait for one in waiting)):
            raise TimeoutError("no answer in time")
    return not wakeup.is_woken or any(one.has_answer_or_error() for one in waiting)


def _answers(connection: RedisConnection, waiting: Collection[_Waiting]) -> list[Any]:
    """Return the found streams. Raises the error of a server if none has answered."""
    found: list[Any] = []
    failed: dict[Node, RedisError] = {}
    for one in waiting:
        try:
            if one.node in failed:
                raise failed[one.node]
            with connection.using(one.node):
                found += _give_up(one) or ()
        except MovedError as error:
            connection.moved(one.node, error)
        except RedisError as error:
            failed[one.node] = error
            one.connection.disconnect()
    if failed and all(one.node in failed for one in waiting):
        raise next(iter(failed.values()))
    return found


def _give_up(one: _Waiting) -> Any:
    """Unblock a command and return what it has found."""
    while not one.has_answer():
        one.node.quick.execute_command("CLIENT UNBLOCK", one.client)
        if one.has_answer(GIVING_UP):
            break
    return one.answer()
