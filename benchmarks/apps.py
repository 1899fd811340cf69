"""Lets the processes of a run have some of the sample's subscribers only."""

from __future__ import annotations

import os

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """Comes last among the apps, when all subscribers are declared."""

    name = "benchmarks"

    def ready(self) -> None:
        from enode_django.eventing.registry import subscribers

        names = os.environ.get("BENCHMARK_SUBSCRIBERS", "").split()
        if names:
            subscribers.only(*(subscribers.get(name) for name in names)).__enter__()  # as long as the process lives
