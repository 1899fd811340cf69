from __future__ import annotations

from django.apps import AppConfig


class FaultyConfig(AppConfig):
    name = "tests.acceptance.faulty"
    label = "faulty"
