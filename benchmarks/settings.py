"""The sample's settings, with the ``ENODE`` values of one run laid over them."""

from __future__ import annotations

import json
import os

from sample_project.settings import *  # noqa: F403
from sample_project.settings import ENODE

ENODE |= json.loads(os.environ.get("BENCHMARK_ENODE", "{}"))
