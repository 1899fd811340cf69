from __future__ import annotations

from django.apps import AppConfig


class ConferenceConfig(AppConfig):
    name = "sample_project.conference"
    label = "conference"
    verbose_name = "Conference"
