from __future__ import annotations

import os

from celery import Celery

SETTINGS_NAMED = "DJANGO_SETTINGS_MODULE" in os.environ
"""True if the environment named the settings."""
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample_project.settings")

app = Celery("sample_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
