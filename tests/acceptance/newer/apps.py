from __future__ import annotations

from django.apps import AppConfig


class NewerConfig(AppConfig):
    name = "tests.acceptance.newer"
    label = "newer"
