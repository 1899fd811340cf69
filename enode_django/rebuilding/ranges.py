"""Division of a replay into ranges of aggregates, each some seconds of work for one process."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from enode_django.conf import conf
from enode_django.eventstore.dividing import bounds, size
from enode_django.eventstore.scanning import Scan
from enode_django.rebuilding.engine import Plan, postgres_shards
from enode_django.runtime import make_store

RANGES_PER_CORE = 4
"""Several, so that the last range does not keep one core busy for long while the others idle."""
RANGE_BYTES = 128 * 1024 * 1024
"""The most bytes of a range: some seconds' work, so that beginning a range costs little in comparison."""


def scans(plan: Plan, cores: int) -> list[Scan]:
    """Return the scans of a plan, which use replicas where the settings name them. Raises `ConfigurationError` if the
    store is not in PostgreSQL, and `StoreUnavailable`."""
    found = []
    for shard in postgres_shards(make_store()):
        inner = bounds(shard.name, max(RANGES_PER_CORE * cores, ceil(size(shard.name) / RANGE_BYTES)))
        alias = conf().SPARK.REPLICAS.get(shard.name, shard.name)
        for low, high in pairwise(["", *inner, None]):
            found.append(Scan(alias, low or "", high, plan.horizon[shard.number], types=plan.types))
    return found
