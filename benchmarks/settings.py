"""The sample's settings, merged with the ``ENODE`` values of one run.

``BENCHMARK_SUBSCRIBERS`` names the subscribers (default: all). ``BENCHMARK_DETAILS`` and ``BENCHMARK_TOTALS`` (any
text) add one each. ``BENCHMARK_SNAPSHOT_EVERY`` is the number of versions between two snapshots of an account.
"""

from __future__ import annotations

import json
import os

from sample_project.layers import merged
from sample_project.settings import *  # noqa: F403
from sample_project.settings import ENODE as SAMPLE_ENODE
from sample_project.settings import INSTALLED_APPS as SAMPLE_APPS

ROOT_URLCONF = "benchmarks.urls"
# Without the conference, whose subscribers would take their part of the cores.
INSTALLED_APPS = [
    *(app for app in SAMPLE_APPS if app != "sample_project.conference"),
    "benchmarks.apps.BenchmarksConfig",
]
ENODE = merged(SAMPLE_ENODE, json.loads(os.environ.get("BENCHMARK_ENODE", "{}")))
