from __future__ import annotations

from django.apps import AppConfig


class ObserverConfig(AppConfig):
    name = "chaos.observer"
    label = "chaos"
