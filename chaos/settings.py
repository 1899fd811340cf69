"""The sample's settings for processes under test. A run sets its own by the environment."""

from __future__ import annotations

import json
import os

from chaos.names import SNAPSHOTS_EVERY
from sample_project.layers import merged
from sample_project.settings import *  # noqa: F403
from sample_project.settings import DATABASES as SAMPLE_DATABASES
from sample_project.settings import ENODE as SAMPLE_ENODE
from sample_project.settings import PROCESSOR_APPS

CONNECT_SECONDS = 2
"""Seconds. A paused server accepts connections and never answers, so clients need a timeout."""

ROOT_URLCONF = __name__
urlpatterns: list[object] = []

INSTALLED_APPS = [*PROCESSOR_APPS, "django_celery_beat", "chaos.observer"]
ENODE = merged(SAMPLE_ENODE, json.loads(os.environ.get("CHAOS_ENODE", "{}")))
DATABASES = {
    alias: {**database, "OPTIONS": {"connect_timeout": CONNECT_SECONDS, **database["OPTIONS"]}}
    for alias, database in SAMPLE_DATABASES.items()
}
CELERY_BEAT_SCHEDULE = {"snapshots": {"task": "enode_django.build_snapshots", "schedule": SNAPSHOTS_EVERY}}
