"""Connections to one Redis server: the one border where redis-py's errors become ours."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from enode_django.equeue.transports.redis_scripts import Script
from enode_django.exceptions import ConfigurationError, EnodeError, QueueError, TransportUnavailable

LONGEST_BLOCK = 5.0
"""Seconds that one blocking command may block; longer waits are made of several, so that a dead server is noticed."""

_LATER = ("redis+sentinel", "redis+cluster")
_REFUSED = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError, NoPermissionError)
_PASSING = (ConnectionError, TimeoutError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_CODES = frozenset({"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"})
_SCRIPT_ERROR = re.compile(r"@user_script: ?\d+: -([A-Z]+) ")


class ScriptCall(NamedTuple):
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int | bytes]

    def command(self) -> tuple[str | int | bytes, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


class RedisConnection:
    """Two pools, so that what blocks never keeps what sends waiting. Safe for threads, and after a fork.

    Nothing is ever sent twice on its own: a call whose connection breaks raises `TransportUnavailable`, and the
    caller, who knows whether that is safe, tries again. Connections that the server closed meanwhile (a restart, its
    idle timeout) are found and replaced before they are used.
    """

    def __init__(self, location: str, *, timeout: float, client: Mapping[str, Any]) -> None:
        options = {**client, **_parse(location)}
        self.name = _name(options)
        self._quick = self._client(options, timeout, timeout)
        self._blocking = self._client(options, timeout, LONGEST_BLOCK + timeout)

    def _client(self, options: Mapping[str, Any], connect_timeout: float, timeout: float) -> Any:
        # Any, because redis-py leaves execute_command untyped.
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
        client = redis.Redis(connection_pool=_pool({**options, **fixed}))
        # redis-py would turn every entry into a dictionary; what comes from the wire is all we need.
        client.set_response_callback("XREAD", lambda response, **_: response)
        return client

    def execute(self, *command: str | int | bytes) -> Any:
        with self._border():
            return self._quick.execute_command(*command)

    def execute_all(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[Any]:
        """One round trip; the first error is raised."""
        with self._border():
            pipeline = self._quick.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute())

    def read_blocking(self, before: Sequence[str | int] | None, command: Sequence[str | int]) -> Any:
        """Run an XREAD that blocks up to `LONGEST_BLOCK` seconds; ``before`` goes ahead of it in the same trip."""
        with self._border():
            if before is None:
                return self._blocking.execute_command(*command)
            pipeline = self._blocking.pipeline(transaction=False)
            pipeline.execute_command(*before)
            pipeline.execute_command(*command)
            return pipeline.execute()[1]

    def run(self, call: ScriptCall) -> Any:
        with self._border():
            try:
                return self._quick.execute_command(*call.command())
            except NoScriptError:
                self._load([call])
                return self._quick.execute_command(*call.command())

    def run_all(self, calls: Sequence[ScriptCall], *, atomically: bool = False) -> list[Any]:
        """One round trip, and another one for those calls whose script the server had forgotten."""
        if len(calls) == 1:
            return [self.run(calls[0])]
        with self._border():
            results = self._pipeline(calls, atomically)
            unknown = [index for index, result in enumerate(results) if isinstance(result, NoScriptError)]
            if unknown:
                self._load([calls[index] for index in unknown])
                again = self._pipeline([calls[index] for index in unknown], atomically)
                for index, result in zip(unknown, again, strict=True):
                    results[index] = result
            for result in results:
                if isinstance(result, Exception):
                    raise result
            return results

    def _pipeline(self, calls: Sequence[ScriptCall], atomically: bool) -> list[Any]:
        pipeline = self._quick.pipeline(transaction=atomically)
        for call in calls:
            pipeline.execute_command(*call.command())
        return list(pipeline.execute(raise_on_error=False))

    def _load(self, calls: Sequence[ScriptCall]) -> None:
        for script in {call.script for call in calls}:
            self._quick.execute_command("SCRIPT LOAD", script.text)

    def close(self) -> None:
        for client in (self._quick, self._blocking):
            client.connection_pool.disconnect()

    @contextmanager
    def _border(self) -> Generator[None]:
        try:
            yield
        except RedisError as error:
            raise self._translated(error) from error

    def _translated(self, error: RedisError) -> EnodeError:
        if isinstance(error, _REFUSED):
            return ConfigurationError(
                f"redis at {self.name} refuses this user or password ({error}); correct the location"
            )
        if isinstance(error, _PASSING) or _code(error) in _PASSING_CODES:
            return TransportUnavailable(f"redis at {self.name} cannot be used now ({error}); try again later")
        if isinstance(error, ResponseError):
            return QueueError(f"redis at {self.name} refuses a command ({error}); Redis 6.2 or later is needed")
        return QueueError(f"redis at {self.name}: {error}")


def _code(error: RedisError) -> str:
    """The server's error code, also of an error within a script (where servers before 7 put it behind a place)."""
    text = str(error)
    within_script = _SCRIPT_ERROR.search(text)
    return within_script[1] if within_script else text.partition(" ")[0]


def _parse(location: str) -> dict[str, Any]:
    # Neither the location nor a parser's own words may be shown: both can hold the password.
    scheme = location.partition("://")[0] if "://" in location else ""
    if scheme in _LATER:
        raise ConfigurationError(
            f"{scheme}:// comes with a later version; name one server with redis://, rediss:// or unix://"
        )
    if scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            "a location must begin with redis://, rediss:// or unix://, like 'redis://localhost:6379/0'"
        )
    try:
        options: dict[str, Any] = parse_url(location)  # type: ignore[no-untyped-call]
        path = urlsplit(location).path.strip("/")
    except ValueError:
        raise ConfigurationError(
            f"a {scheme}:// location has a part that cannot be read (port, query or brackets); percent-encode what is "
            "special in user and password"
        ) from None
    if scheme == "unix" and not path:
        raise ConfigurationError("a unix:// location needs a path, like 'unix:///run/redis/redis.sock?db=0'")
    if scheme != "unix" and path and not path.isdigit():
        raise ConfigurationError(
            f"the path of a {scheme}:// location is the database's number, like 'redis://localhost:6379/0'"
        )
    return options


def _pool(options: Mapping[str, Any]) -> ConnectionPool:
    try:
        pool = ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)  # takes all options, and does not connect yet
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigurationError(f"redis-py cannot use the options given for {_name(options)}: {error}") from None
    return pool


def _name(options: Mapping[str, Any]) -> str:
    if "path" in options:
        return str(options["path"])
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
