from __future__ import annotations

from django.apps import AppConfig


class BankConfig(AppConfig):
    name = "sample_project.bank"
    label = "bank"
    verbose_name = "Bank"
