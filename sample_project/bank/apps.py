from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class BankConfig(AppConfig):
    name = "sample_project.bank"
    label = "bank"
    verbose_name = "Bank"

    def ready(self) -> None:
        from sample_project.bank.tellers import make_group

        post_migrate.connect(make_group, sender=self)
