"""Folding of stored streams into the rows of a `ModelProjection`, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.pending import HandledTypes
from enode_django.eventing.projections import ModelProjection
from enode_django.eventing.read_models.row_changes import DELETED
from enode_django.eventing.read_models.row_normalising import HANDLED
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.fetched import AGGREGATE_ROOT_TYPE, EVENTS, VERSION, RecordOf, Row
from enode_django.repository.loading import StoredStamp
from enode_django.serialization.codec import stored_events

_id_of = itemgetter(StreamRecord._fields.index("aggregate_root_id"))
_NO_VALUES: dict[str, Any] = {}


class Folded(NamedTuple):
    """An aggregate after its first ``streams``, up to version ``until``, with its row, or None if it has none. The row
    of one that has ``failed`` is of no use."""

    aggregate_root_id: str
    aggregate_root_type: str
    until: int
    streams: int
    row: Any
    failed: bool


def fold(
    projection: ModelProjection[Any], rows: Iterable[Row], record_of: RecordOf, normalise: Callable[[Any], object]
) -> Iterator[Folded]:
    """Yield each aggregate after its streams, which are sorted and begin with the first one. It has failed if a stream
    is missing or if anything raises.

    This is `HandledEvents.of` and `changed_row` for each stream, in one function: a rebuild calls it for millions, and
    the calls and lists in between would take a twentieth of its time.
    """
    model, creates, types = projection.model, makes_row(projection), HandledTypes(projection)
    for id, streams in groupby(rows, _id_of):
        row: Any = None
        values, count, failed = _NO_VALUES, 0, False
        for stream in streams:
            count += 1
            if failed or stream[VERSION] != count:
                failed = True
                continue
            try:
                stamp = None
                for index, (name, schema_version, fields) in enumerate(stored_events(stream[EVENTS])):
                    restore, handlers = types[name, schema_version]
                    if restore is None:
                        continue
                    if stamp is None:
                        stamp = StoredStamp(stream, record_of)
                    event = restore(fields, stamp, index)
                    if row is None:
                        if creates is not None and not creates(event):
                            continue
                        row = model(aggregate_root_id=id)
                        values = row.__dict__
                    elif HANDLED in values:
                        normalise(row)
                    for handler in handlers:
                        handler(row, event)
                    if DELETED in values:
                        row = None
                    elif HANDLED not in values:
                        values[HANDLED] = ()
            except Exception:
                failed = True
            if row is not None:
                row.version = count
        yield Folded(id, stream[AGGREGATE_ROOT_TYPE], stream[VERSION] or 0, count, row, failed)
