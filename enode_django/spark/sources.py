"""The data sources of this package."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from enode_django.spark.sink import RowsDataSource
from enode_django.spark.source import EventsSource

SOURCES: tuple[type[DataSource], ...] = (EventsSource, RowsDataSource)


def register(spark: SparkSession) -> None:
    """Register the data sources in a session, after the files that executors need were added to it. Safe to call
    twice."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # without it, `EventsSource` would be refused
    for source in SOURCES:
        spark.dataSource.register(source)
