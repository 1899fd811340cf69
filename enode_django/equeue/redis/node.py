"""A Redis server, with two connection pools and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import RedisError
from redis.retry import Retry

from enode_django.exceptions import ConfigurationError


class Timeouts(NamedTuple):
    """Seconds for connecting, for an answer, and for the answer of a blocking command."""

    connect: float
    quick: float
    blocking: float


class Node:
    """One server with two pools. Answers on the ``blocking`` pool may take up to ``longest_wait`` seconds."""

    def __init__(self, name: str, quick: ConnectionPool, blocking: ConnectionPool) -> None:
        self.name = name
        self.longest_wait = float(blocking.connection_kwargs["socket_timeout"])
        # Any, because redis-py leaves execute_command untyped.
        self.quick: Any = redis.Redis(connection_pool=quick)
        self.blocking: Any = redis.Redis(connection_pool=blocking)
        for client in (self.quick, self.blocking):
            # Without this, redis-py turns every entry into a dictionary; the raw answer is enough.
            for command in ("XREAD", "XRANGE"):
                client.set_response_callback(command, lambda response, **_: response)

    def disconnect(self) -> None:
        for client in (self.quick, self.blocking):
            client.connection_pool.disconnect()

    def disconnect_idle(self) -> None:
        for client in (self.quick, self.blocking):
            client.connection_pool.disconnect(inuse_connections=False)


def both_options(options: Mapping[str, Any], timeouts: Timeouts) -> list[dict[str, Any]]:
    """Return the options of the quick pool and of the blocking one."""
    answers = (timeouts.quick, timeouts.blocking)
    return [{**options, **fixed_options(options, timeouts.connect, timeout)} for timeout in answers]


def fixed_options(options: Mapping[str, Any], connect_timeout: float, timeout: float) -> dict[str, Any]:
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


def make_pool(name: str, options: Mapping[str, Any]) -> ConnectionPool:
    try:
        pool = ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)  # checks the options without connecting
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigurationError(f"redis-py cannot use the options given for {name}: {error}") from None
    return pool
