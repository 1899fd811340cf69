from __future__ import annotations

from django.apps import AppConfig


class HangingConfig(AppConfig):
    name = "tests.acceptance.hanging"
    label = "hanging"
