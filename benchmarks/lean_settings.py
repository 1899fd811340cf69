"""The benchmarks' settings without apps with pages, as on a host that runs processors only."""

from __future__ import annotations

from benchmarks.settings import *  # noqa: F403
from sample_project.settings import PROCESSOR_APPS

ROOT_URLCONF = __name__
urlpatterns: list[object] = []
INSTALLED_APPS = [*PROCESSOR_APPS, "benchmarks.apps.BenchmarksConfig"]
