"""An app that restricts the sample's subscribers, adds one, and changes the snapshots, for the processes of a run."""

from __future__ import annotations

import os
from contextlib import ExitStack

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """The last of the apps, so that all subscribers are declared before."""

    name = "benchmarks"

    def ready(self) -> None:
        from enode_django.eventing.registry import subscribers

        if os.environ.get("BENCHMARK_DETAILS"):
            from benchmarks import details  # noqa: F401  declares a projection

        if os.environ.get("BENCHMARK_TOTALS"):
            from benchmarks import totals  # noqa: F401  declares another one

        names = os.environ.get("BENCHMARK_SUBSCRIBERS", "").split()
        if names:
            self._only = ExitStack()  # never closed: for the life of the process
            self._only.enter_context(subscribers.only(*map(subscribers.get, names)))
        if os.environ.get("BENCHMARK_SNAPSHOT_EVERY"):
            from sample_project.bank.domain import BankAccount

            BankAccount.snapshot_every = int(os.environ["BENCHMARK_SNAPSHOT_EVERY"])
