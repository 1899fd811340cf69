from __future__ import annotations

from django.apps import AppConfig


class UnrulyConfig(AppConfig):
    name = "tests.acceptance.unruly"
    label = "unruly"
    default_auto_field = "django.db.models.BigAutoField"
