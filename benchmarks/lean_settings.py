"""The benchmarks' settings without the apps that are for people: what a host needs that runs processors only."""

from __future__ import annotations

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS as ALL_APPS

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

ROOT_URLCONF = __name__
urlpatterns: list[object] = []
INSTALLED_APPS = [app for app in ALL_APPS if app not in FOR_PEOPLE]
