"""The sample's settings for processors under test: what a test changes comes through the environment."""

from __future__ import annotations

import json
import os

from sample_project.settings import *  # noqa: F403
from sample_project.settings import ENODE as SAMPLE_ENODE
from sample_project.settings import INSTALLED_APPS as SAMPLE_APPS

FOR_PEOPLE = {
    "django.contrib.admin",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
}
"""Nobody looks at these processors, and each of some thousand would take a quarter of a second to import them."""

ROOT_URLCONF = __name__
urlpatterns: list[object] = []

INSTALLED_APPS = [app for app in SAMPLE_APPS if app not in FOR_PEOPLE]
INSTALLED_APPS += os.environ.get("ACCEPTANCE_APPS", "").split()
ENODE = {**SAMPLE_ENODE, **json.loads(os.environ.get("ACCEPTANCE_ENODE", "{}"))}
globals().update(json.loads(os.environ.get("ACCEPTANCE_CELERY", "{}")))
