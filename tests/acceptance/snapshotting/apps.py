from __future__ import annotations

from django.apps import AppConfig

EVERY = 10


class SnapshottingConfig(AppConfig):
    name = "tests.acceptance.snapshotting"
    label = "snapshotting"

    def ready(self) -> None:
        from sample_project.bank.domain import BankAccount

        BankAccount.snapshot_every = EVERY
