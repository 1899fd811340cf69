"""A command mailbox without its thread: commands in, decisions out.

The aggregates of a mailbox live here, in memory. A command is handled without waiting until the previous one is stored.
Commands that are handled but not yet durable are remembered, to be handled again if the store refuses them.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from enode_django.bus.results import failure
from enode_django.commanding.cache import AggregateCache, Slot
from enode_django.commanding.claiming import Claiming, ClaimingCommands, accepted, claiming
from enode_django.commanding.context import CommandContext
from enode_django.commanding.corrections import CorrectionLookout
from enode_django.commanding.dead_letters import as_told, is_withdrawn
from enode_django.commanding.decisions import POSTPONED, STORED, Decision, DecisionKind, Envelope, Recovery
from enode_django.commanding.handler_retries import NO_RETRIES, HandlerRetries, Postponed, PostponedCommands, postponed
from enode_django.commanding.identity import conflict_with_message, divided
from enode_django.commanding.logged_steps import logged
from enode_django.commanding.outcomes import (
    SENDERS_ERRORS,
    check_version,
    crash_record,
    failed,
    nothing_changed,
    refusal_of,
    refused_for_now,
    stream_of,
)
from enode_django.commanding.recent_commands import RecentCommands
from enode_django.commanding.shared_state_writer import SharedStateWriter
from enode_django.commanding.slot_loader import SlotLoader
from enode_django.commanding.uniqueness import CLAIM_DEADLINE, Uniqueness
from enode_django.concurrency.backoff import Persist
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.handlers import HANDLER_ERRORS, Handlers
from enode_django.domain.origin import handled_command
from enode_django.domain.refusals import DomainException
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import Shard
from enode_django.exceptions import EnodeError, StoreUnavailable
from enode_django.repository.loading import AggregateLoader, Begin
from enode_django.repository.unique_keys import Values, kept_values_of
from enode_django.telemetry import steplog
from enode_django.telemetry.tracing import current_tracing

logger = logging.getLogger("enode_django.commands")


class CommandProcessor:
    """Handles the commands of one mailbox. All methods but `postponed_in` are called by one thread. They block on the
    store to load aggregates, to find stored commands, and to look for corrections.

    ``note[0]`` is the position of the command being handled, or `NOTHING_IN_FLIGHT`; the supervisor reads it.
    ``suspects`` is held while a suspect is handled, so that suspects run one at a time in this process. ``keeper``
    writes durable states to the shared states; the ``loader`` begins with these. ``shard`` holds the aggregates of the
    mailbox: those whose events are corrected there are reloaded (None: they are not looked for). ``claim_deadline`` is
    the time in seconds after which another aggregate may take a claimed value that is not stored.
    """

    def __init__(
        self,
        loader: AggregateLoader,
        handlers: Handlers,
        *,
        persist: Persist,
        max_aggregates: int,
        max_recent: int,
        max_bytes: int,
        max_cached_bytes: int = sys.maxsize,
        note: InFlightMarker | None = None,
        suspects: threading.Lock | None = None,
        keeper: SharedStateWriter | None = None,
        retries: HandlerRetries = NO_RETRIES,
        shard: Shard | None = None,
        claim_deadline: float = CLAIM_DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader = loader
        self._handlers = handlers
        self._persist = persist
        self._keeper = keeper
        self._cache = AggregateCache(max_aggregates, keeper.evict if keeper is not None else None, max_cached_bytes)
        self._recent = RecentCommands(max_recent)
        self._max_bytes = max_bytes
        self._note: InFlightMarker = [NOTHING_IN_FLIGHT] if note is None else note
        self._suspects = suspects
        self._postponed = PostponedCommands(retries, clock)
        self._waiting, self._failures = self._postponed.waiting, self._postponed.failures
        self._store_away: StoreUnavailable | None = None
        self._corrections = CorrectionLookout(shard, clock) if shard is not None else None
        self._uniqueness = Uniqueness(loader, claim_deadline)
        self._claiming = ClaimingCommands(self._uniqueness, self._note, self._decide)
        self._slots = SlotLoader(loader, self._cache, persist, self._note)
        self._load_missing, self._restore = self._slots.load_missing, self._slots.restore
        self._handle = current_tracing().handling(self._handle_untraced)

    @property
    def cached(self) -> int:
        """The number of aggregates in memory."""
        return len(self._cache)

    def take_stored(self, envelopes: Sequence[Envelope]) -> tuple[list[Decision], list[Envelope]]:
        """Return the decisions on those commands of a queue's backlog that are stored, to be published first, and the
        commands that are left to `handle`. Block on the store if there is a backlog."""
        keys = [(envelope.id, envelope.aggregate_root_id) for envelope in envelopes if envelope.is_backlog]
        return divided(envelopes, self._persist(lambda: self._loader.store.find(keys)) if keys else {})

    def handle(self, envelopes: Sequence[Envelope], most_bytes: int | None = None) -> list[Decision]:
        """Handle commands in order. Return one decision for each, with its record encoded. Stop after the command that
        brings the records to ``most_bytes``."""
        self._heed_corrections()
        self._load_missing(envelopes)
        slots = self._cache.slots
        take = logged(self._take_alone) if steplog.enabled() else self._take
        claiming, entries = self._claiming, list[Decision]()
        claiming.begin()
        left = sys.maxsize if most_bytes is None else most_bytes
        for envelope in envelopes:
            if claiming.places:
                claiming.make_way(envelope, entries)
            entry = take(slots[envelope.aggregate_root_id], envelope)
            if isinstance(entry, Claiming):
                claiming.add(entry, entries)
            entries.append(entry)
            if entry.record is not None and (left := left - len(entry.record.events)) <= 0:
                break
        claiming.claim(entries)
        self._note[0] = NOTHING_IN_FLIGHT
        self._let_go_of_postponed(entries)
        return entries

    def take_due(self) -> list[Envelope]:
        """Return the postponed commands that are due, to be given to `handle`."""
        return self._postponed.take_due()

    def postponed_in(self, window: OffsetWindow) -> int:
        """Return the number of commands of this lease that wait to be handled again. May be called by any thread."""
        return self._postponed.count_in(window)

    def _let_go_of_postponed(self, entries: Iterable[Decision]) -> None:
        """Settle the idle slots of postponed commands, once all ``entries`` are handled; they stay until then."""
        for entry in entries if self._waiting else ():
            if entry.kind is POSTPONED:
                slot = self._cache.get(entry.aggregate_root_id)
                if slot is not None and not slot.unfinished:
                    self._cache.settle(slot)

    def _take(self, slot: Slot, envelope: Envelope) -> Decision:
        id = envelope.aggregate_root_id
        if id in self._waiting:
            self._postponed.add(envelope)
            return postponed(envelope, slot.epoch, 0.0, None)
        known = self._recent.find(envelope.id, id)
        if known is None and envelope.suspect and self._suspects is not None:
            return self._execute_alone(slot, envelope, self._suspects)
        if known is None:
            return self._conclude(slot, envelope, self._handle(slot, envelope))
        if (conflict := conflict_with_message(envelope, known.body)) is not None:
            entry = Decision(DecisionKind.VERDICT, slot.id, slot.epoch, envelope, None, None, conflict)
        elif known.result is None:
            entry = Decision(DecisionKind.REPEAT, slot.id, slot.epoch, envelope, None)
        else:
            result = as_told(envelope, known.result)
            if result is not known.result:
                self._recent.remember(envelope.id, slot.id, result, known.body)
            entry = Decision(DecisionKind.VERDICT, slot.id, slot.epoch, envelope, None, None, result)
        self._cache.pin(slot, entry)
        return entry

    def _take_alone(self, slot: Slot, envelope: Envelope) -> Decision:
        return self._claiming.alone(self._take(slot, envelope))

    def finish(self, entries: Sequence[Decision]) -> None:
        """Release decisions that are durable, or no longer this worker's to finish, in any order."""
        slots, keeper = self._cache.slots, self._keeper
        for entry in entries:
            slot, envelope = slots.get(entry.aggregate_root_id), entry.envelope
            if slot is None or not slot.unfinished or envelope is None:
                continue
            # The slot may hold another decision on the same command, if the aggregate was recovered meanwhile.
            if (held := slot.unfinished.pop(envelope, None)) is None:
                continue
            if entry.kind is STORED:
                self._recent.forget_message(envelope.id, slot.id)  # the row may be made of another message
            if envelope.window is not None and envelope.window.closed:
                self._recent.forget(envelope.id, slot.id)  # its verdict, if it is one, was never confirmed
            elif entry.result is not None and is_withdrawn(entry):
                self._recent.withdraw(envelope.id, slot.id, entry.result)
            elif keeper is not None and held is entry:
                keeper.note(slot, entry)
            if not slot.unfinished:
                self._cache.settle(slot)
        if changes := [entry for entry in entries if entry.change is not None]:
            self._uniqueness.confirm(changes)

    def recover(self, *recoveries: Recovery) -> list[Decision]:
        """Reload the aggregates from the store, all together, and handle their unfinished commands again, each
        aggregate's under a new epoch. Snapshots are used: they were made of durable streams and are checked against
        them. Shared states are not used, and are deleted.

        An aggregate's first decision announces the new epoch. A recovery for an epoch that is over changes nothing.
        """
        resumed: list[Decision] = []
        again: dict[str, list[tuple[Decision, Envelope]]] = {}
        for recovery in recoveries:
            id = recovery.aggregate_root_id
            if id in again:
                continue
            slot = self._cache.get(id)
            if slot is not None and slot.epoch > recovery.epoch:
                resumed.append(Decision(DecisionKind.RESUMED, id, slot.epoch, None, None))
            elif unfinished := self._drop_refused(id, slot):
                again[id] = unfinished
            else:
                resumed.append(Decision(DecisionKind.RESUMED, id, self._slots.next_epoch(), None, None))
        self._load_missing([unfinished[0][1] for unfinished in again.values()], begin=Begin.SNAPSHOT)
        return resumed + [entry for id, unfinished in again.items() for entry in self._handle_again(id, unfinished)]

    def _drop_refused(self, id: str, slot: Slot | None) -> list[tuple[Decision, Envelope]]:
        """Forget the aggregate's state. Return its unfinished decisions with their envelopes."""
        entries = slot.decisions if slot is not None else []
        self._cache.drop(id)
        if self._keeper is not None:
            self._keeper.delete(id)
        unfinished = [(entry, entry.envelope) for entry in entries if entry.envelope is not None]
        if unfinished:
            extra = {"aggregate_root_id": id}
            text = "aggregate %r: stored by somebody else; handling %d commands again"
            logger.warning(text, id, len(unfinished), extra=extra)
        return unfinished

    def _handle_again(self, id: str, decided: list[tuple[Decision, Envelope]]) -> list[Decision]:
        waiting = self._postponed.suspend(id)  # they came after all commands of ``decided``
        slot = self._cache.slots[id]
        entries = [Decision(DecisionKind.RESUMED, id, slot.epoch, None, None)]
        seen: set[str] = set()
        take = logged(self._take_alone) if steplog.enabled() else self._take_alone
        for entry, envelope in decided:
            # A verdict from memory repeats the answer of a finished copy, which must not change.
            if envelope.id not in seen and not (entry.kind is DecisionKind.VERDICT and entry.rests_on is None):
                self._recent.forget(envelope.id, id)
            seen.add(envelope.id)
            entries.append(take(slot, envelope))
        self._note[0] = NOTHING_IN_FLIGHT
        self._postponed.resume(id, waiting)
        self._let_go_of_postponed(entries)
        return entries

    def forget(self, queue: int) -> None:
        """Drop what is held of a queue that was acquired again: another worker may have changed it since.

        Commands that were unfinished under an earlier lease are delivered again, and decided by what is stored then.
        They are not remembered either, since the store never confirmed their decisions.
        """
        for id, slot in list(self._cache.slots.items()):
            unfinished = slot.decisions
            if slot.queue == queue and all(entry.is_lost for entry in unfinished):
                for entry in unfinished:
                    if entry.envelope is not None:
                        self._recent.forget(entry.envelope.id, id)
                self._cache.drop(id)
                if self._keeper is not None:
                    self._keeper.forget(id)
        self._postponed.drop_lost()
        if self._keeper is not None:
            self._keeper.forget_evicted(queue)

    def _heed_corrections(self) -> None:
        """Reload aggregates whose events were corrected, and apply their unfinished decisions on top."""
        if self._corrections is not None:
            self._corrections.heed(self._loader, self._cache, self._keeper, self._restore)

    # -- shared states --------------------------------------------------------------------------------------------

    @property
    def pause(self) -> float | None:
        """Seconds until `keep` or `take_due` has something to do; None if nothing waits."""
        keeping = self._keeper.pause if self._keeper is not None else None
        return min((pause for pause in (keeping, self._postponed.pause) if pause is not None), default=None)

    def keep(self) -> None:
        """Encode some durable states for the shared states. Takes about `shared_state_writer.AT_ONCE` seconds."""
        if self._keeper is not None:
            self._keeper.work(self._cache.slots)

    def keep_rest(self, seconds: float) -> None:
        """Encode all remaining states, as `keep` does, for up to ``seconds``."""
        if self._keeper is not None:
            self._keeper.flush(self._cache.slots, seconds)

    # -- handling -------------------------------------------------------------------------------------------------

    def _execute_alone(self, slot: Slot, envelope: Envelope, suspects: threading.Lock) -> Decision:
        self._note[0] = NOTHING_IN_FLIGHT  # nothing is handled while this waits
        with self._slots.holding(suspects):
            entry = self._claiming.alone(self._conclude(slot, envelope, self._handle(slot, envelope)))
            self._note[0] = NOTHING_IN_FLIGHT
        return entry

    def _conclude(self, slot: Slot, envelope: Envelope, entry: Decision) -> Decision:
        if isinstance(entry, Postponed):
            self._postponed.begin(envelope, entry.due)
        elif not isinstance(entry, Claiming):
            self._recent.remember(envelope.id, slot.id, entry.result, envelope.body)
            if self._failures:
                self._postponed.decide(envelope)
            self._cache.pin(slot, entry)
        return entry

    def _decide(self, waiting: Claiming, error: Exception | None) -> Decision:
        """Decide on a command whose values are claimed, or could not be: that is as if its handler had raised this."""
        slot, envelope, context = waiting.slot, waiting.handled, waiting.context
        if error is None:
            entry = accepted(slot, envelope, waiting.aggregate, waiting.record, waiting.values.claim.change)
        elif isinstance(error, DomainException):
            entry = self._refused(slot, envelope, context, error)
        else:
            self._store_away = error if isinstance(error, StoreUnavailable) else None
            entry = self._raised(slot, envelope, context, error)
        return self._conclude(slot, envelope, entry)

    def _handle_untraced(self, slot: Slot, envelope: Envelope) -> Decision:
        command = envelope.command
        unusable = envelope.failed or slot.error
        if command is None or unusable is not None:
            return self._failed(slot, envelope, unusable or EnodeError("there is no command"), None)
        aggregate = slot.aggregate
        context = CommandContext(command, aggregate, self._load_foreign, envelope.metadata)
        self._store_away = None
        token = handled_command.set(context)
        try:
            if envelope.expected_version is not None:
                check_version(envelope.expected_version, slot.id, slot.version)
            self._note[0] = envelope.position
            before = kept_values_of(aggregate) if aggregate is not None and aggregate._enode_unique else ()
            if (value := self._handlers.find(type(command))(command, context)) is not None:
                context.set_result(value)
            if self._store_away is not None:
                raise self._store_away
            return self._done(slot, envelope, context, before)
        except DomainException as refusal:
            if self._store_away is not None:
                return self._raised(slot, envelope, context, self._store_away)
            return self._refused(slot, envelope, context, refusal)
        except HANDLER_ERRORS as error:
            return self._raised(slot, envelope, context, self._store_away or error)
        finally:
            handled_command.reset(token)

    def _load_foreign(self, id: str) -> AggregateRoot | None:
        """Load another aggregate for a handler, in the handler's time. Ask the store once: a retry inside a lost
        transaction would never end. A `StoreUnavailable` ends the attempt, even if the handler swallows it."""
        try:
            corrections = self._corrections
            begin = Begin.STATE if corrections is None else corrections.begin_of(self._loader.store, id)
            return self._loader.load(id, begin=begin)
        except StoreUnavailable as error:
            self._store_away = error
            raise

    def _done(self, slot: Slot, envelope: Envelope, context: CommandContext, before: Values) -> Decision:
        aggregate = context.changed_aggregate()
        if aggregate is None:
            version = slot.version
            result = nothing_changed(envelope, version, context.result, self._max_bytes)
            return Decision(DecisionKind.VERDICT, slot.id, slot.epoch, envelope, version, None, result)
        record = stream_of(envelope, aggregate, context.result, context.sent, self._max_bytes)
        values = self._uniqueness.change_of(envelope, aggregate, before) if aggregate._enode_unique else None
        if values is not None:
            return claiming(slot, envelope, context, aggregate, record, values)
        return accepted(slot, envelope, aggregate, record)

    def _refused(self, slot: Slot, envelope: Envelope, context: CommandContext, refusal: DomainException) -> Decision:
        record, result = None, None
        try:
            if refusal.durable:
                record = refusal_of(envelope, slot.aggregate, refusal, self._max_bytes)
            else:
                result = refused_for_now(envelope, refusal, self._max_bytes)
        except Exception as error:  # its class may skip our __init__, or a field may hold an invalid value
            return self._raised(slot, envelope, context, error)
        self._clean(slot, envelope, context)
        kind = DecisionKind.REFUSAL if refusal.durable else DecisionKind.VERDICT
        return Decision(kind, slot.id, slot.epoch, envelope, slot.version, record, result)

    def _raised(self, slot: Slot, envelope: Envelope, context: CommandContext, error: BaseException) -> Decision:
        own = self._handlers.retry_on(type(context.command))
        due = self._postponed.fail(envelope, error, own, counts=error is not self._store_away)
        self._store_away = None
        if due is not None:
            return self._postpone(slot, envelope, context, error, due)
        if not isinstance(error, SENDERS_ERRORS):
            logger.error("command %s %r failed", envelope.type_name, envelope.id, exc_info=error)
        self._clean(slot, envelope, context)
        record = crash_record(envelope, slot.aggregate, error, self._max_bytes) if envelope.crash_handler else None
        if record is None:  # a mistake is logged when its verdict counts
            return self._failed(slot, envelope, error, slot.version)
        if isinstance(error, SENDERS_ERRORS):
            logger.warning("command %s %r failed: %s", envelope.type_name, envelope.id, error)
        return Decision(DecisionKind.REFUSAL, slot.id, slot.epoch, envelope, slot.version, record)

    def _postpone(
        self, slot: Slot, envelope: Envelope, context: CommandContext, error: BaseException, due: float
    ) -> Decision:
        result = failure(envelope.id, envelope.aggregate_root_id, error)
        attempts = self._postponed.attempts_of(envelope)
        told = "command %s %r is handled again (failed attempts: %s): %s: %s"
        logger.warning(told, envelope.type_name, envelope.id, attempts, result.error_type, result.error_message)
        self._clean(slot, envelope, context)
        return postponed(envelope, slot.epoch, due, result)

    def _clean(self, slot: Slot, envelope: Envelope, context: CommandContext) -> None:
        """Restore the aggregate if the handler has changed it. Most refusals, which are common, have not."""
        if context.has_changes:
            self._restore(envelope.aggregate_root_id, slot)

    def _failed(self, slot: Slot, envelope: Envelope, error: BaseException, rests_on: int | None) -> Decision:
        return Decision(DecisionKind.VERDICT, slot.id, slot.epoch, envelope, rests_on, None, failed(envelope, error))
