from __future__ import annotations

from django.apps import AppConfig


class FirstEditionConfig(AppConfig):
    name = "tests.acceptance.meters.first"
    label = "meters_first"
