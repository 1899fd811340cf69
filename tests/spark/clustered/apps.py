"""An app whose Celery worker has one session of Spark for all of its jobs, and a job that says what executors see."""

from __future__ import annotations

from django.apps import AppConfig


class ClusteredConfig(AppConfig):
    name = "tests.spark.clustered"
    label = "clustered"
