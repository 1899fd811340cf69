"""Folding of stored streams into the rows of a `ModelProjection`, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.pending import HandledEvents
from enode_django.eventing.projections import ModelProjection
from enode_django.eventing.read_models.row_changes import changed_row
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.fetched import AGGREGATE_ROOT_TYPE, VERSION, Row, TimeOf

_id_of = itemgetter(StreamRecord._fields.index("aggregate_root_id"))


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
    projection: ModelProjection[Any], rows: Iterable[Row], time_of: TimeOf, normalise: Callable[[Any], object]
) -> Iterator[Folded]:
    """Yield each aggregate after its streams, which are sorted and begin with the first one. It has failed if a stream
    is missing, or if the events of one cannot be read or handled."""
    model, creates, handled = projection.model, makes_row(projection), HandledEvents(projection)
    for id, streams in groupby(rows, _id_of):
        row, count, failed = None, 0, False
        for stream in streams:
            count += 1
            if failed or stream[VERSION] != count:
                failed = True
                continue
            try:
                row = changed_row(model, id, row, handled.of(stream, time_of), normalise, creates)
            except Exception:
                failed = True
            if row is not None:
                row.version = count
        yield Folded(id, stream[AGGREGATE_ROOT_TYPE], stream[VERSION] or 0, count, row, failed)
