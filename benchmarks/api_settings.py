"""Of the server that the benchmark ``api`` asks: nothing is throttled, and whoever is authenticated may send deposits.
What else there is needs the default permission."""

from __future__ import annotations

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import ENODE, REST_FRAMEWORK

ROOT_URLCONF = "benchmarks.api_urls"
REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"] = {}
ENODE["API"] = {"COMMANDS": {"bank.Deposit": ["rest_framework.permissions.IsAuthenticated"]}}
