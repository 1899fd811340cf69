"""Lets the processes of a run have some of the sample's subscribers only, one more, and other snapshots."""

from __future__ import annotations

import os
from contextlib import ExitStack

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """Comes last among the apps, when all subscribers are declared."""

    name = "benchmarks"

    def ready(self) -> None:
        from enode_django.eventing.registry import subscribers

        if os.environ.get("BENCHMARK_DETAILS"):
            from benchmarks import details  # noqa: F401  declares a projection

        names = os.environ.get("BENCHMARK_SUBSCRIBERS", "").split()
        if names:
            self._only = ExitStack()  # that nobody closes: as long as the process lives
            self._only.enter_context(subscribers.only(*map(subscribers.get, names)))
        if os.environ.get("BENCHMARK_SNAPSHOT_EVERY"):
            from sample_project.bank.domain import BankAccount

            BankAccount.snapshot_every = int(os.environ["BENCHMARK_SNAPSHOT_EVERY"])
