from __future__ import annotations

from django.apps import AppConfig


class EnodeDjangoConfig(AppConfig):
    name = "enode_django"
    label = "enode_django"
    verbose_name = "ENode"
    default_auto_field = "django.db.models.BigAutoField"
