"""Words that applications use for fields and methods, and classes that use all of them which they may."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from enode_django.exceptions import DefinitionError

_BUSINESS = """
    accept accepted add amount applicant applied apply approve archive args arguments assign balance batch begin
    body book cancel check checks claim close closed code comment commands commit complete confirm context copy
    crashes created currency customer data database databases date declared defaults delete deliver delta
    description destination details discard draft due email end entries envelope error errors event
    event_handlers events execute expire extra fee field fields find finish followed followers follows freeze
    from_plain get group handle handler handlers handlers_of handles_refusals hooks index initial
    initialise invoice invoices is_at_one is_stamped issue item items job journal key keys kind label last
    length limit lines list lock log mailbox mark meta method methods mode name names new_stamp note notes
    notify number open order origin origins owner paid parent park part password pause pay payload period phase
    pick place plain plan position post postings price priority process product profile publish quantity queue
    rate read rebuild receipt record refund refusal_handlers reject release remove renew replay replays_left
    report reserve reserved reserved_for reset resend restorer resume return_ review role room route row
    rows rule run sale save schedule schema seal sealed send sender sequence set settings settle shard ship
    shipment source stamp stamped start_date state status step stock stop store stored stream subject submit
    subscriber suspend tags take taken target terms text ticket time to_plain to_store token topic total track
    transfer types uncommitted undo unit unlock update use user value values verdict verify version_number void
    wallet weight withdraw worker write applied_events for_replay snapshot_taken snapshot_version snapshots
    last_snapshot command_type correlation_id causation_id declared_value expected_version default_name
    known_handlers self cls
"""
_OURS = """
    id version aggregate_root_id timestamp command_id metadata message durable exposed retriable needs_help type_name
    aliases id_prefix schema_version uncommitted_events snapshot restore snapshot_every start replays time_limit retry
    abstract resends model models volatile indexes_after_load aggregate_field insert with_traceback
    add_note load aload history ahistory result unique
"""
_PRIVATE = """
    _reserved _envelope _schema _appliers _initial _initial_state _id _version _uncommitted _new_stamp
    _applier_of _stamp _index _plain _origin _methods _arguments _may_yield _crashes _default_name
    _handlers_by_name _follows_type _can_follow _settings _hooks _state _events _entries _accept _replay
"""
WORDS = [*_BUSINESS.split(), *_OURS.split()]
PRIVATE = _PRIVATE.split()


def class_of(base: type, body: Mapping[str, Any], fields: Iterable[str] = ()) -> Any:
    """Return a subclass with these fields, all of them numbers that are 0 by default."""
    declared = dict.fromkeys(fields, int)
    name = f"{base.__name__}OfWords"
    own = {"__module__": __name__, "type_name": f"words.{name}", "__annotations__": declared}
    return type(name, (base,), {**own, **dict.fromkeys(declared, 0), **body})


def fields_of(base: type) -> tuple[list[str], dict[str, str]]:
    """Return the words that may be fields of a subclass, and the refusals of the others."""
    return _usable(lambda words: class_of(base, {}, words))


def methods_of(base: type) -> tuple[list[str], dict[str, str]]:
    """Return the words that may be methods of a subclass, and the refusals of the others."""
    return _usable(lambda words: class_of(base, {"abstract": True, **dict.fromkeys(words, never)}))


def never(self: Any, *arguments: Any, asked: bool) -> bool:
    """Stands for a method of the domain: the framework, which does not know ``asked``, cannot call it."""
    return asked


def _usable(make: Callable[[list[str]], object]) -> tuple[list[str], dict[str, str]]:
    words, refused = [*WORDS, *PRIVATE], {}
    while True:
        try:
            make(words)
        except DefinitionError as error:
            (word,) = (word for word in words if re.search(rf"['.]{word}\b|defines {word}\(", str(error)))
            refused[word] = str(error)
            words.remove(word)
        else:
            return words, refused
