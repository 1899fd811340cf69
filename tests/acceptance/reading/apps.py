from __future__ import annotations

from django.apps import AppConfig


class ReadingConfig(AppConfig):
    name = "tests.acceptance.reading"
    label = "reading"
    default_auto_field = "django.db.models.BigAutoField"
