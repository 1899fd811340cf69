from __future__ import annotations

from django.apps import AppConfig


class ThirdEditionConfig(AppConfig):
    name = "tests.acceptance.meters.third"
    label = "meters_third"
