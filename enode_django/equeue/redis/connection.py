"""Commands to Redis. The only place where errors of redis-py become errors of this package."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from enode_django.equeue.redis.errors import Unconfirmed, is_replicas, own_error
from enode_django.equeue.redis.location import ClusterLocation, SentinelLocation, parse_location
from enode_django.equeue.redis.node import Node, Timeouts
from enode_django.equeue.redis.scripts import Script
from enode_django.equeue.redis.servers import ClusterServers, SentinelServers, Servers, SingleServer
from enode_django.exceptions import EnodeError

LONGEST_BLOCK = 5.0
"""The most seconds that one command blocks; longer waits take several commands, so that a dead server is noticed."""

_TRIES = 5
"""A call is tried at most this often if it is refused because a script or a key was not at the server."""

Command = Sequence[str | int | float | bytes]
"""A command whose second word is its key."""


class ScriptCall(NamedTuple):
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int | bytes] = ()

    def command(self) -> tuple[str | int | bytes, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


class Confirmation(NamedTuple):
    """The number of replicas that must have a call's writes, and the milliseconds that they have for it."""

    replicas: int
    milliseconds: int


class RedisConnection:
    """Thread-safe, and usable after a fork.

    A command is never repeated by itself: a call whose connection breaks raises `TransportUnavailable`, and the
    caller, who knows whether that is safe, tries again. Connections that the server has closed (a restart, its idle
    timeout) are detected and replaced before use. Only refused commands are sent again: for scripts unknown to the
    server, and keys of another node of the cluster.

    A failed node of a cluster fails only the calls for its keys: all others are made before an error is raised.
    """

    def __init__(
        self, location: str, *, timeout: float, client: Mapping[str, Any], confirmation: Confirmation | None = None
    ) -> None:
        parsed = parse_location(location)
        self.is_cluster = isinstance(parsed, ClusterLocation)
        patience = confirmation.milliseconds / 1000 if confirmation is not None else 0.0
        timeouts = Timeouts(timeout, timeout + patience, LONGEST_BLOCK + timeout)
        self._confirmation = confirmation
        self._servers: Servers
        if isinstance(parsed, ClusterLocation):
            self._servers = ClusterServers(parsed, timeouts, client)
        elif isinstance(parsed, SentinelLocation):
            self._servers = SentinelServers(parsed, timeouts, client)
        else:
            self._servers = SingleServer(parsed, timeouts, client)
        self.name = self._servers.name
        self.closings = 0
        """The number of `close` calls. It can be used afterwards, but calls that wait during a `close` end."""

    def execute(self, *command: str | int | float | bytes) -> Any:
        return self.execute_all([command])[0]

    def execute_all(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip to each server. Raise the first error."""
        return _raised(self.execute_each(commands))

    def execute_each(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands as `execute_all` does. Errors are returned in the results, as exceptions of this package."""
        return self._everywhere([str(command[1]) for command in commands], commands)

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[str | int | bytes] = (),
        *,
        confirmed: bool = False,
    ) -> Any:
        return self.run_all([ScriptCall(script, keys, arguments)], confirmed=confirmed)[0]

    def run_all(self, calls: Sequence[ScriptCall], *, confirmed: bool = False) -> list[Any]:
        """Run scripts in one round trip to each server, and another one for refused calls. Raise the first error.

        ``confirmed``: raise `TransportUnavailable` if too few replicas have the writes.
        """
        return _raised(self.run_each(calls, confirmed=confirmed))

    def run_each(self, calls: Sequence[ScriptCall], *, atomically: bool = False, confirmed: bool = False) -> list[Any]:
        """Run scripts as `run_all` does; with ``atomically``, adjacent calls with the same keys as one transaction.
        Errors are returned in the results, as exceptions of this package: `QueueFull` if a server has no room and has
        done nothing."""
        confirmation = self._confirmation if confirmed else None
        return self._everywhere(
            [call.keys[0] for call in calls], calls, atomically=atomically, confirmation=confirmation
        )

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        if not self.is_cluster:
            return list(self.execute("MGET", *keys))
        return self.execute_all([("GET", key) for key in keys])  # their slots differ

    def read_each(self, reads: Mapping[str, Command]) -> list[Any]:
        """Return the answers of non-blocking XREADs, which are given by key. Errors are among the answers, as
        exceptions of this package."""
        return self._everywhere(list(reads), list(reads.values()))

    def read_blocking(self, before: Command | None, command: Command, *, key: str) -> Any:
        """Run an XREAD that blocks up to `LONGEST_BLOCK` seconds, after ``before`` in the same round trip."""
        return self.at_node(key, lambda node: _read_blocking(node.blocking, before, command))

    def at_node(self, key: str, call: Callable[[Node], Any]) -> Any:
        """Call with the server of the key, and again with another one if that server says that the key has moved."""
        with self.border():
            for _ in range(_TRIES):
                node = self._servers.node(key)
                try:
                    with self.using(node, blocks=True):
                        return call(node)
                except MovedError as error:
                    self._servers.moved(node, error)
            raise ConnectionError(f"no node of the cluster has {key!r} now")

    def nodes(self, keys: Sequence[str]) -> tuple[dict[Node, list[int]], dict[int, RedisError]]:
        """Return the indexes of the keys by server, and errors by the index of each key without a usable server."""
        nodes: dict[Node, list[int]] = {}
        failures: dict[int, RedisError] = {}
        for place, key in enumerate(keys):
            try:
                nodes.setdefault(self._servers.node(key), []).append(place)
            except RedisError as error:
                failures[place] = error
        return nodes, failures

    def moved(self, node: Node, error: MovedError) -> None:
        """Note that a node has refused a command because of a moved key."""
        self._servers.moved(node, error)

    def close(self) -> None:
        self.closings += 1
        self._servers.close()

    def check_not_closed_since(self, closings: int) -> None:
        """Raise redis-py's `ConnectionError` if there were more than ``closings`` calls of `close`."""
        if self.closings != closings:
            raise ConnectionError("the transport was closed")

    def _everywhere(
        self,
        keys: Sequence[str],
        todo: Sequence[Any],
        *,
        atomically: bool = False,
        confirmation: Confirmation | None = None,
    ) -> list[Any]:
        """Return the answer to each `Command` or `ScriptCall`, errors among them as exceptions of this package."""
        results: list[Any] = [None] * len(todo)
        left: Sequence[int] = range(len(todo))
        for _ in range(_TRIES):
            undone: list[int] = []
            nodes, failures = self.nodes([keys[place] for place in left])
            for place, error in failures.items():
                results[left[place]] = error
            for node, places in nodes.items():
                of_node = [left[place] for place in places]
                given = [todo[place] for place in of_node]
                answers = self._answers(node, given, atomically, confirmation)
                undone += self._undone(node, of_node, given, answers)
                for place, answer in zip(of_node, answers, strict=True):
                    results[place] = answer
            if not undone:
                break
            left = sorted(undone)
        return [self._own_error(result) if isinstance(result, RedisError) else result for result in results]

    def _answers(
        self, node: Node, todo: Sequence[Any], atomically: bool, confirmation: Confirmation | None
    ) -> list[Any]:
        """Return one server's answers, or its error for each call."""
        try:
            with self.using(node):
                return _send(node, todo, atomically, confirmation)
        except RedisError as error:
            return [error] * len(todo)

    def _undone(self, node: Node, places: Sequence[int], todo: Sequence[Any], answers: list[Any]) -> list[int]:
        """Return the indexes of refused calls that another try may do, after loading scripts and noting moved keys.
        Replaces the answers to scripts that cannot be loaded by the reason."""
        undone: list[int] = []
        unknown: dict[int, Script] = {}
        for index, answer in enumerate(answers):
            if not isinstance(answer, Exception):
                continue
            if isinstance(answer, NoScriptError):
                unknown[index] = todo[index].script
            elif isinstance(answer, MovedError):
                self._servers.moved(node, answer)
                undone.append(places[index])
            elif isinstance(answer, ClusterDownError | Unconfirmed) or is_replicas(answer):
                self._servers.failed(node, is_replica=is_replicas(answer))
        if not unknown:
            return undone
        try:
            with self.using(node):
                for script in set(unknown.values()):
                    node.quick.execute_command("SCRIPT LOAD", script.text)
        except RedisError as error:
            for index in unknown:
                answers[index] = error
            return undone
        return undone + [places[index] for index in unknown]

    @contextmanager
    def using(self, node: Node, *, blocks: bool = False) -> Generator[None]:
        """Note when a server fails. With ``blocks``, the time until a lost connection counts as no delay."""
        began = time.monotonic()
        try:
            yield
        except MovedError:
            raise
        except RedisError as error:
            is_lost = isinstance(error, TimeoutError) or (isinstance(error, ConnectionError) and not blocks)
            waited = time.monotonic() - began if is_lost else 0.0
            self._servers.failed(node, is_replica=is_replicas(error), waited=waited)
            raise

    @contextmanager
    def border(self) -> Generator[None]:
        try:
            yield
        except RedisError as error:
            raise self._own_error(error) from error

    def _own_error(self, error: RedisError) -> EnodeError:
        return own_error(error, self.name, is_cluster=self.is_cluster)


def _raised(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _send(node: Node, todo: Sequence[Any], atomically: bool, confirmation: Confirmation | None) -> list[Any]:
    """Send to one server. Raises only errors of the connection."""
    if len(todo) == 1 and confirmation is None:
        try:
            return [node.quick.execute_command(*_words(todo[0]))]
        except ResponseError as error:
            return [error]
    groups = [list(calls) for _, calls in groupby(todo, key=attrgetter("keys"))] if atomically else None
    pipeline = node.quick.pipeline(transaction=False)
    for command in map(_words, todo) if groups is None else _transactions(groups):
        pipeline.execute_command(*command)
    if confirmation is not None:
        pipeline.execute_command("WAIT", *confirmation)
    answers = list(pipeline.execute(raise_on_error=False))
    missing = _missing(answers.pop(), confirmation) if confirmation is not None else None
    if groups is not None:
        answers = _without_transactions(answers, list(map(len, groups)))
    if missing is None:
        return answers
    return [answer if isinstance(answer, Exception) else missing for answer in answers]


def _words(given: Any) -> Command:
    return given.command() if isinstance(given, ScriptCall) else given


def _transactions(groups: Sequence[Sequence[ScriptCall]]) -> Iterator[Command]:
    for calls in groups:
        commands = [call.command() for call in calls]
        yield from commands if len(commands) == 1 else [("MULTI",), *commands, ("EXEC",)]


def _without_transactions(answers: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    results: list[Any] = []
    place = 0
    for size in sizes:
        if size == 1:
            results.append(answers[place])
            place += 1
            continue
        done = answers[place + size + 1]
        if isinstance(done, Exception):
            refused = [error for error in answers[place : place + size + 1] if isinstance(error, Exception)]
            done = [next(iter(refused), done)] * size
        results += done
        place += size + 2
    return results


def _missing(answer: Any, confirmation: Confirmation) -> Exception | None:
    """Return why an answer to ``WAIT`` confirms nothing, or None if it does."""
    if isinstance(answer, ResponseError) and "replica instances" in str(answer):  # scripts may have written nothing
        return ReadOnlyError(str(answer))
    if isinstance(answer, Exception):
        return answer
    if int(answer) >= confirmation.replicas:
        return None
    return Unconfirmed(
        f"{int(answer)} of {confirmation.replicas} replicas have confirmed within {confirmation.milliseconds} ms; "
        "it is unknown whether this outlives the server"
    )


def _read_blocking(client: Any, before: Command | None, command: Command) -> Any:
    if before is None:
        return client.execute_command(*command)
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command(*before)
    pipeline.execute_command(*command)
    return pipeline.execute()[1]
