"""Settings of the server of the benchmark ``api``: no throttling, and every authenticated user may send deposits.
Everything else needs the default permission."""

from __future__ import annotations

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import ENODE, REST_FRAMEWORK

ROOT_URLCONF = "benchmarks.api_urls"
REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"] = {}
ENODE["API"] = {"COMMANDS": {"bank.Deposit": ["rest_framework.permissions.IsAuthenticated"]}}
