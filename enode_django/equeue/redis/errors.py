"""Translate the errors of redis-py into exceptions of this package."""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from enode_django.exceptions import (
    ConfigurationError,
    EnodeError,
    PartlyUnavailable,
    QueueError,
    QueueFull,
    TransportUnavailable,
)

_REFUSED = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError)
_PASSING = (AskError, ClusterDownError, ConnectionError, ReadOnlyError, TimeoutError, TryAgainError)
_PASSING_CODES = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY", "UNBLOCKED"}
)
_DENIED_IN_SCRIPT = re.compile("ACL failure in script|The user executing the script can't")  # Redis 7, and before
_DENIED_COMMAND = re.compile("to run the '([^']+)' command")  # Redis 6 does not name a command within a script
_SCRIPT_ERROR = re.compile(r"@user_script: ?\d+: -([A-Z]+) ")


class Unconfirmed(ConnectionError):
    """A server has answered, but too few of its replicas have confirmed."""


def own_error(error: RedisError, name: str, *, is_cluster: bool) -> EnodeError:
    """Return the exception to raise for an error of the servers ``name``. In a cluster others may be usable."""
    own = _own_error(error, name, PartlyUnavailable if is_cluster else TransportUnavailable)
    own.__cause__ = error
    return own


def _own_error(error: RedisError, name: str, unavailable: type[TransportUnavailable]) -> EnodeError:
    if isinstance(error, _REFUSED):
        return ConfigurationError(f"redis at {name} refuses this user or password ({error}); correct the location")
    if isinstance(error, NoPermissionError) or _DENIED_IN_SCRIPT.search(str(error)):
        return ConfigurationError(f"redis at {name} denies its user a command or a key ({error}); {_allowing(error)}")
    if isinstance(error, OutOfMemoryError) or _code(error) == "OOM":
        return QueueFull(f"redis at {name} has no room now, and stored nothing ({error}); try again later")
    if isinstance(error, _PASSING) or _code(error) in _PASSING_CODES:
        return unavailable(f"redis at {name} cannot be used now ({error}); try again later")
    if isinstance(error, ResponseError):
        return QueueError(f"redis at {name} refuses a command ({error}); Redis 6.2 or later is needed")
    return QueueError(f"redis at {name}: {error}")


def _allowing(error: RedisError) -> str:
    denied = _DENIED_COMMAND.search(str(error))
    rule = f"+{denied[1]}" if denied else "what ACL LOG names, +COMMAND or ~KEYS,"
    return f"add {rule} to the user's rules with ACL SETUSER"


def is_replicas(answer: Any) -> bool:
    """Return True for the error of a server that is not a master, or no longer."""
    return isinstance(answer, RedisError) and (isinstance(answer, ReadOnlyError) or _code(answer) == "READONLY")


def _code(error: RedisError) -> str:
    """Return the server's error code, also of an error within a script (behind a prefix before Redis 7)."""
    text = str(error)
    within_script = _SCRIPT_ERROR.search(text)
    return within_script[1] if within_script else text.partition(" ")[0]
