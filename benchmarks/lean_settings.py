"""The benchmarks' settings without the apps that are for people: what a host needs that runs processors only."""

from __future__ import annotations

from benchmarks.settings import *  # noqa: F403
from sample_project.settings import PROCESSOR_APPS

ROOT_URLCONF = __name__
urlpatterns: list[object] = []
INSTALLED_APPS = [*PROCESSOR_APPS, "benchmarks.apps.BenchmarksConfig"]
