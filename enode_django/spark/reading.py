"""The databases that tasks read from, and the number of tasks that use them at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enode_django.conf import conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_alias(alias: str) -> str:
    """Return the alias to read a shard from: that of its replica if the settings name one."""
    return conf().SPARK.REPLICAS.get(alias, alias)


def limited(frame: DataFrame) -> DataFrame:
    """Coalesce the partitions of a frame to the number of tasks that may use the database at the same time. A task does
    its partitions one after the other, in order."""
    most = conf().SPARK.DATABASE_TASKS
    return frame if most is None else frame.coalesce(most)


def limited_count(count: int) -> int:
    """Return ``count``, limited to the number of tasks that may use the database at the same time."""
    return min(count, conf().SPARK.DATABASE_TASKS or count)
