"""Shared states in Redis: one key for each aggregate, which expires."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from enode_django.concurrency.outages import Attempts
from enode_django.equeue.redis.connection import RedisConnection
from enode_django.eventstore.limits import holds
from enode_django.exceptions import MalformedMessage, shown
from enode_django.repository.breaker import Breaker
from enode_django.repository.sealing import Seal
from enode_django.repository.store import Snapshot
from enode_django.serialization.plain import pack, unpack

logger = logging.getLogger("enode_django.snapshots")

Value = TypeVar("Value")

TIMEOUT = 0.05
"""Seconds for connecting, and for an answer: loading an aggregate from the store takes no longer."""
PAUSE = 5.0
"""Seconds without requests to a server that has failed."""
LARGEST = 100_000
"""The most bytes of a payload: one that takes longer to send would make the server look slow."""
PORTION = 100
PORTION_BYTES = 250_000

_FORMAT = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class RedisStates:
    """Shared states in Redis. Projects that share a Redis database need a ``prefix`` each; ``ttl`` is in whole seconds.

    States are sealed with the first of the ``secrets``. A state that none of them has sealed counts as damaged, so that
    access to the server without a secret is not enough to forge the state of an aggregate.

    A server that is down, slow or full is named in the log, and not asked again for ``pause`` seconds.
    """

    def __init__(
        self,
        location: str,
        *,
        secrets: Sequence[str | bytes],
        prefix: str = "enode",
        ttl: int = 86_400,
        timeout: float | None = None,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        timeout = TIMEOUT if timeout is None else timeout
        self._connection = RedisConnection(location, timeout=timeout, client={})
        self._seal = Seal(secrets)
        self._prefix = prefix
        self._ttl = ttl
        self._slow = 2 * timeout  # it may include connecting
        self._clock = clock
        self.breaker = Breaker(pause, clock=clock)
        self._told: set[str] = set()
        self._attempts = Attempts()

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        found: dict[str, Snapshot] = {}
        wanted = filter(holds, aggregate_root_ids)
        while ids := list(islice(wanted, PORTION)):
            values = self._ask(partial(self._connection.get_all, [*map(self.key, ids)]), within=self._slow)
            for id, value in zip(ids, values or (), strict=False):
                state = self._read(id, value) if value is not None else None
                if state is not None:
                    found[id] = state
        return found

    def save(self, states: Sequence[Snapshot]) -> None:
        for portion in _portions(filter(self._is_small, states)):
            commands = [
                ("SET", key, self._seal.sealed(key, encode_state(state)), "EX", self._ttl)
                for key, state in ((self.key(state.aggregate_root_id), state) for state in portion)
            ]
            self._ask(partial(self._connection.execute_all, commands))

    def delete(self, aggregate_root_id: str) -> None:
        self._ask(partial(self._connection.execute, "UNLINK", self.key(aggregate_root_id)))

    def discard(self, state: Snapshot) -> None:
        self.delete(state.aggregate_root_id)

    def close(self) -> None:
        self._connection.close()

    def key(self, aggregate_root_id: str) -> str:
        return f"{self._prefix}:state:{aggregate_root_id}"

    def _ask(self, call: Callable[[], Value], *, within: float = float("inf")) -> Value | None:
        """Return the answer; None after an error, or while the breaker is open. A call that takes longer than
        ``within`` seconds in all opens the breaker: commands wait for reads. A write may take longer in small parts, or
        because this thread has to wait for others."""
        if self.breaker.is_open:
            return None
        started = self._clock()
        try:
            answer = call()
        except Exception as error:  # any error may be ignored: the store has everything
            self._trip(str(error))
            return None
        took = self._clock() - started
        if took > within:
            self._trip(f"redis at {self._connection.name} took {took:.3f} s to answer")
        else:
            self._attempts.worked()
        return answer

    def _trip(self, reason: str) -> None:
        if self.breaker.trip():
            told = f"{reason}; meanwhile aggregates are loaded from the store alone"
            self._attempts.failed_at(f"the shared states' redis at {self._connection.name}", told)

    def _read(self, id: str, value: bytes) -> Snapshot | None:
        try:
            return decode_state(id, self._seal.opened(self.key(id), value))
        except MalformedMessage as error:
            text = f"the value of the key {self.key(id)!r} is not a state of ours, and is deleted: {error}"
            self._tell("garbage", text)
            self.delete(id)
            return None

    def _is_small(self, state: Snapshot) -> bool:
        if len(state.payload) <= LARGEST:
            return True
        name, size = state.aggregate_root_type, len(state.payload)
        self._tell(
            name, f"{name} {state.aggregate_root_id!r} takes {size} bytes; above {LARGEST} none is kept in redis"
        )
        return False

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s", text)


def encode_state(state: Snapshot) -> bytes:
    made_at = (state.created_at - _EPOCH) // _MICROSECOND
    return pack((_FORMAT, state.aggregate_root_type, state.version, state.fingerprint, made_at, state.payload))


def decode_state(aggregate_root_id: str, value: bytes) -> Snapshot:
    """Decode a state. Raises `MalformedMessage` for bytes that `encode_state` cannot have made."""
    parts: Any = unpack(value)
    if not isinstance(parts, list) or [*map(type, parts)] != [int, str, int, str, int, bytes] or parts[0] != _FORMAT:
        raise MalformedMessage(f"it has another shape than ours: {shown(parts)}")
    _, type_name, version, fingerprint, made_at, payload = parts
    try:
        created_at = _EPOCH + made_at * _MICROSECOND
    except OverflowError as error:
        raise MalformedMessage(f"it was made at no time: {made_at!r}") from error
    return Snapshot(aggregate_root_id, type_name, version, fingerprint, payload, created_at)


def _portions(states: Iterable[Snapshot]) -> Iterator[list[Snapshot]]:
    portion: list[Snapshot] = []
    size = 0
    for state in states:
        if portion and (len(portion) == PORTION or size + len(state.payload) > PORTION_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(state)
        size += len(state.payload)
    if portion:
        yield portion
