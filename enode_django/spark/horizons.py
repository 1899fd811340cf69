"""Horizons of jobs: a position of each shard, below which all parts of a job read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import Position
from enode_django.exceptions import shown
from enode_django.rebuilding.engine import postgres_shards

__all__ = ["horizon_of"]

Positions = Mapping[int, Position]
"""A position of each shard, by the number of the shard."""


def horizon_of(store: EventStore) -> dict[int, Position]:
    """Return the position that each shard has reached: rows below it never change. Raises `StoreUnavailable`.

    For example::

        horizon = horizon_of(make_store())
        with spark_session() as spark:
            assert events(spark, horizon=horizon).count() == events(spark, horizon=horizon).count()
    """
    return {shard.number: shard.position() for shard in postgres_shards(store)}


def text_of(positions: Positions) -> str:
    """Return the positions as JSON, for options.

    >>> text_of({0: Position(0, 5321)})
    '{"0": "0.5321.0"}'
    """
    return json.dumps(texts_of(positions))


def texts_of(positions: Positions) -> dict[str, str]:
    """Return the positions as a JSON value."""
    return {str(number): str(position) for number, position in sorted(positions.items())}


def positions_in(texts: Mapping[str, str]) -> dict[int, Position]:
    """Return the positions of a JSON value made by `texts_of`."""
    return {int(number): Position.parse(text) for number, text in texts.items()}


def positions_of(text: str) -> dict[int, Position]:
    """Return the positions of a text made by `text_of`. Raises `ValueError` for any other text."""
    try:
        return positions_in(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{shown(text)} gives no positions of shards; give JSON such as {{"0": "0.5321.0"}}: {error}'
        ) from error
