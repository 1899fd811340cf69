"""The sample's settings, with the ``ENODE`` values of one run laid over them.

``BENCHMARK_SUBSCRIBERS`` names the subscribers there shall be; without it there are all. ``BENCHMARK_DETAILS``
lets there be one more (any text). ``BENCHMARK_SNAPSHOT_EVERY``
is how many versions lie between two snapshots of an account.
"""

from __future__ import annotations

import json
import os

from sample_project.layers import merged
from sample_project.settings import *  # noqa: F403
from sample_project.settings import ENODE as SAMPLE_ENODE
from sample_project.settings import INSTALLED_APPS

INSTALLED_APPS += ["benchmarks.apps.BenchmarksConfig"]
ENODE = merged(SAMPLE_ENODE, json.loads(os.environ.get("BENCHMARK_ENODE", "{}")))
