"""The aggregates of a command mailbox on their way from the store into its cache."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from enode_django.commanding.cache import AggregateCache, Slot
from enode_django.commanding.decisions import Envelope
from enode_django.concurrency.backoff import Persist
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.domain.aggregate import AggregateRoot
from enode_django.exceptions import EnodeError, UnknownMessageType, UnusableSnapshot
from enode_django.repository.loading import AggregateLoader, Begin, History, replay_record

logger = logging.getLogger("enode_django.commands")


class SlotLoader:
    """Loads aggregates into the ``cache``, each under a new epoch. All methods are called by the mailbox's thread, and
    block on the store. ``note`` is that of the `CommandProcessor`."""

    def __init__(self, loader: AggregateLoader, cache: AggregateCache, persist: Persist, note: InFlightMarker) -> None:
        self._loader = loader
        self._cache = cache
        self._persist = persist
        self._note = note
        self._epoch = 0
        self._held: threading.Lock | None = None

    def next_epoch(self) -> int:
        """Begin a new epoch, and return it."""
        self._epoch += 1
        return self._epoch

    @contextmanager
    def holding(self, suspects: threading.Lock) -> Iterator[None]:
        """Hold the lock in the block, but not while an aggregate is loaded: a suspect that waits for its shard is not
        noted as in flight, so suspects of other shards need not wait for it."""
        with suspects:
            self._held = suspects
            try:
                yield
            finally:
                self._held = None

    def load_missing(self, envelopes: Sequence[Envelope], *, begin: Begin = Begin.STATE) -> None:
        """Load the aggregates of these commands that the cache does not have. The slot of one that cannot be loaded has
        the error."""
        slots = self._cache.slots
        missing = {e.aggregate_root_id: e for e in envelopes if e.aggregate_root_id not in slots}
        if not missing:
            return
        small, large = self._persist(lambda: self._loader.sorted_by_size(missing, begin=begin))
        for portion in small:
            histories = self._persist(partial(self._loader.histories_of, portion))
            for id, history in histories.items():
                self._note[0] = missing[id].position  # appliers are application code: they may hang or crash
                self._new_slot(id, missing[id], partial(self._rebuild, history))
            self._note[0] = NOTHING_IN_FLIGHT
        for id in large:
            self._new_slot(id, missing[id], partial(self._load, id, begin))

    def restore(self, id: str, slot: Slot) -> None:
        """Undo what a failed command did: reload the aggregate, and replay its streams that are not stored yet."""
        try:
            aggregate = self._load(id, Begin.SNAPSHOT)
            for entry in slot.decisions:
                record = entry.record
                if record is None or record.version is None:
                    continue
                if record.version > (0 if aggregate is None else aggregate.version):
                    aggregate = replay_record(aggregate, record)
            slot.aggregate, slot.error = aggregate, None
        except EnodeError as error:
            slot.aggregate, slot.error = None, _logged(id, error)

    def _new_slot(self, id: str, envelope: Envelope, rebuild: Callable[[], AggregateRoot | None]) -> None:
        aggregate, unreadable = None, None
        try:
            aggregate = rebuild()
        except EnodeError as error:
            unreadable = _logged(id, error)
        queue = envelope.window.queue if envelope.window is not None else 0
        self._cache.put(Slot(id, aggregate, self.next_epoch(), queue, unreadable))

    def _rebuild(self, history: History) -> AggregateRoot | None:
        try:
            return history.rebuild()
        except UnusableSnapshot as error:
            aggregate = self._load(history.aggregate_root_id, history.next_begin)
            self._loader.reject(history, error)
            return aggregate

    def _load(self, id: str, begin: Begin) -> AggregateRoot | None:
        self._note[0] = NOTHING_IN_FLIGHT  # a slow store is not the handler's fault
        with self._letting_suspects_go_on():
            loaded = self._persist(lambda: self._loader.try_to_load(id, begin=begin))
        if isinstance(loaded, UnknownMessageType):
            raise loaded
        return loaded

    @contextmanager
    def _letting_suspects_go_on(self) -> Iterator[None]:
        held = self._held
        if held is None:
            yield
            return
        held.release()
        try:
            yield
        finally:
            held.acquire()


def _logged(id: str, error: EnodeError) -> EnodeError:
    logger.error("aggregate %r cannot be loaded: %s", id, error, extra={"aggregate_root_id": id})
    return error
