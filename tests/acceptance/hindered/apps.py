from __future__ import annotations

from django.apps import AppConfig


class HinderedConfig(AppConfig):
    name = "tests.acceptance.hindered"
    label = "hindered"

    def ready(self) -> None:
        from enode_django.eventing.registry import subscribers
        from tests.acceptance.hindered.hindrances import hinder

        for subscriber in subscribers.all():
            hinder(subscriber)
