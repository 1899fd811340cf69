"""Settings of the sample, for development. The environment variables ``DATABASE_URL``, ``EVENT_DATABASE_URLS``,
``QUEUE_URL`` and ``REDIS_URL`` name the services; ``DATABASE_POOLER`` (any text) says that the databases are behind a
pooler, whose transactions share sessions."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

BASE_DIR = Path(__file__).resolve().parent.parent

DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
EVENT_DATABASE_URLS = os.environ.get("EVENT_DATABASE_URLS", "").split()
"""The URLs of the event store's shards, separated by blanks. If empty, the event store is in the default database."""
PREPARE_THRESHOLD = None if os.environ.get("DATABASE_POOLER") else 5
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
QUEUE_URL = os.environ.get("QUEUE_URL", os.environ.get("REDIS_URL", ""))
"""The URL of a broker (``tcp://…``) or of Redis. If empty, it is the broker of `manage.py runbroker`."""


def queue_at(url: str) -> dict[str, Any]:
    """Return the settings of the queue. The driver follows from the URL's scheme."""
    if not url:
        return {}
    broker = url.startswith("tcp://")
    driver = "broker.BrokerTransport" if broker else "redis_streams.RedisStreamsTransport"
    return {"BACKEND": f"enode_django.equeue.transports.{driver}", "LOCATION": url}


def database_from_url(url: str) -> dict[str, Any]:
    """Return the settings of the database ``postgresql://user:password@host:port/name?option=value``. A socket
    directory is given as ``?host=/path``."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(f"DATABASE_URL has the scheme {parts.scheme!r}; the event store needs postgresql://")
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or options.pop("host", "")),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"prepare_threshold": PREPARE_THRESHOLD, **options},
    }


def cache_url(queue_url: str) -> str:
    """Return the URL of another database of the same Redis, because clearing a cache empties its database."""
    parts = urlsplit(queue_url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db=1"
    return urlunsplit(parts._replace(path="/1"))


SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-development")
DEBUG = os.environ.get("DEBUG", "") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

# The apps that a host needs to run processors without pages.
PROCESSOR_APPS = [
    "django.contrib.postgres",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "enode_django",
    *(app for app in ("sample_project.bank", "sample_project.notes") if find_spec(app)),
]
SILENCED_SYSTEM_CHECKS = ["enode_django.W171"]  # only transfers have UUIDs as ids here
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    *PROCESSOR_APPS,
    "sample_project.conference",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "enode_django.middleware.EnodeMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "sample_project.urls"
WSGI_APPLICATION = "sample_project.wsgi.application"
ASGI_APPLICATION = "sample_project.asgi.application"
STATIC_URL = "static/"

SHARDS = {f"events{number}": database_from_url(url) for number, url in enumerate(EVENT_DATABASE_URLS)}
DATABASES = {"default": database_from_url(DATABASE_URL), **SHARDS}
DATABASE_ROUTERS = ["enode_django.routers.EventStoreRouter"] if SHARDS else []
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": cache_url(REDIS_URL),
        "KEY_PREFIX": "sample",
    }
    if "REDIS_URL" in os.environ
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"

# The place of the daily Parquet archive of events: a directory, or a URI for Spark.
EVENT_ARCHIVE = os.environ.get("EVENT_ARCHIVE", str(BASE_DIR / "archive"))
ENODE: dict[str, Any] = {
    "QUEUE": queue_at(QUEUE_URL),
    "EVENT_STORE": {"DATABASES": list(SHARDS)} if SHARDS else {},
    "JOBS": {"EXPORT_DIRECTORIES": [EVENT_ARCHIVE]},
}

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_RATES": {
        "enode-commands": "100/second",
        "enode-queries": "100/second",
        "enode-streams": "60/min",
    },
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "The sample's API",
    "VERSION": "1",
    # The list of commands is hidden from users who may not send any.
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SERVE_INCLUDE_SCHEMA": False,
    # Served from the sidecar package, not from a CDN.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

# Celery runs the batch jobs: `celery -A sample_project worker` and `celery -A sample_project beat`.
CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = REDIS_URL
CELERY_TIMEZONE = TIME_ZONE
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = CELERY_RESULT_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TRACK_STARTED = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Redis redelivers an unacknowledged message after this time, which must exceed the time limit of every job.
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 12 * 3600}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1  # a message behind a long job stays available to other workers
CELERY_WORKER_MAX_TASKS_PER_CHILD = 1  # Spark's Java process ends with the process that started it
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
# Beat copies them to its tables, where the admin can change them.
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "snapshots": {"task": "enode_django.build_snapshots", "schedule": 3600.0},
    "archive": {"task": "enode_django.export_events", "schedule": 86_400.0, "args": [EVENT_ARCHIVE]},
    # It fails, and changes nothing, if the rows differ from those that the events make.
    "rebuild": {"task": "enode_django.rebuild_projection", "schedule": 604_800.0, "args": ["bank.AccountSummaries"]},
}
