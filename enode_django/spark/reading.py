"""The databases that tasks read from, and the number of tasks that do so at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enode_django.conf import conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_alias(alias: str) -> str:
    """Return the alias that a shard's event streams are read from: that of its replica, if the settings name one."""
    return conf().SPARK.REPLICAS.get(alias, alias)


def limited(frame: DataFrame) -> DataFrame:
    """Put the partitions of a frame together to so many tasks as may use the database at once. Each does its partitions
    one after the other, in their order."""
    most = conf().SPARK.DATABASE_TASKS
    return frame if most is None else frame.coalesce(most)


def limited_count(count: int) -> int:
    """Return how many tasks to make where ``count`` would do."""
    return min(count, conf().SPARK.DATABASE_TASKS or count)
