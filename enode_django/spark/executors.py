"""Django in the Python processes that Spark starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.apps import apps
from django.db import connections

from enode_django.concurrency.garbage import collect_seldom
from enode_django.exceptions import ConfigurationError
from enode_django.processes.settings_module import SETTINGS_VARIABLE


def set_up() -> None:
    """Load the project's settings and apps, unless this process has loaded them. Raises `ConfigurationError` if the
    settings are not named in the environment."""
    if apps.ready:
        return
    if not os.environ.get(SETTINGS_VARIABLE):
        raise ConfigurationError(
            f"{SETTINGS_VARIABLE} is not set in Spark's Python process; start the session with "
            f"enode_django.spark.session.spark_session, or set spark.executorEnv.{SETTINGS_VARIABLE}"
        )
    django.setup()
    collect_seldom()


@contextmanager
def task() -> Iterator[None]:
    """Run the work of one task with its own connections. They are closed afterwards, regardless of ``CONN_MAX_AGE``:
    the process may idle for long before its next task, or serve another job."""
    set_up()
    connections.close_all()
    try:
        yield
    finally:
        connections.close_all()
