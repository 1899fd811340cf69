from __future__ import annotations

from django.apps import AppConfig


class MetersConfig(AppConfig):
    name = "tests.acceptance.meters"
    label = "meters"
