"""The imports of `manage.py check` in a project that has installed the app and the admin, and uses nothing yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}}
ROOT_URLCONF = "shop_urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "enode_django",
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
            ]
        },
    }
]
"""
URLS = """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
"""
CHECK = """
import sys
import django
from django.core.management import call_command
django.setup()
call_command("check", fail_level="WARNING")
print(*sys.modules)
"""
NEEDED = {
    *("enode_django.checks.settings", "enode_django.checks.store", "enode_django.checks.api"),
    *("enode_django.admin.dashboard", "enode_django.admin.streams", "enode_django.admin.topics"),
}
NEEDLESS = [
    *("celery", "redis", "rest_framework", "drf_spectacular", "prometheus_client", "opentelemetry", "pyspark"),
    *("pandas", "psycopg_pool", "msgpack", "mmh3"),
    *("enode_django.runtime", "enode_django.client", "enode_django.monitoring", "enode_django.monitoring.series"),
    *("enode_django.history", "enode_django.jobs.running", "enode_django.batch", "enode_django.forms"),
    *("enode_django.rebuilding", "enode_django.repository", "enode_django.commanding", "enode_django.processors"),
    *("enode_django.eventstore.base", "enode_django.eventstore.shard_map", "enode_django.eventing.event_subscription"),
    *(
        "enode_django.equeue",
        "enode_django.processors.broker_options",
        "enode_django.serialization.codec",
        "enode_django.spark",
    ),
    *("enode_django.admin.stream_pages", "enode_django.admin.topic_pages", "enode_django.admin.job_operations"),
    *("enode_django.admin.new_commands", "enode_django.checks.deploy", "enode_django.testing"),
    *("enode_django.domain.declarations", "enode_django.eventing", "enode_django.serialization"),
    *("enode_django.checks.definitions", "enode_django.checks.subscribers"),
]
DECLARING = """
import sys
import django
from django.core import checks
django.setup()
from enode_django import DomainEvent, ProcessManager, handles
class Twice(DomainEvent):
    type_name = "shop.Twice"
class Again(DomainEvent):
    type_name = "shop.Twice"
class Nameless(ProcessManager):
    @handles
    def on(self, event: Again): ...
print(*(message.id for message in checks.run_checks()))
"""
AGAIN = """
import django
from django.apps import apps
from django.core.checks.registry import registry
django.setup()
before = registry.get_checks(include_deployment_checks=True)
apps.get_app_config("enode_django").ready()
print(*(set(registry.get_checks(include_deployment_checks=True)) - set(before)) or ["none"])
"""


def printed(code: str, directory: Path) -> set[str]:
    """Run the code in a new project, and return the words of its last line."""
    (directory / "shop_settings.py").write_text(SETTINGS)
    (directory / "shop_urls.py").write_text(URLS)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={"PYTHONPATH": str(PROJECT), "DJANGO_SETTINGS_MODULE": "shop_settings"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_what_is_declared_is_checked(tmp_path: Path) -> None:
    assert {"enode_django.E011", "enode_django.W018"} <= printed(DECLARING, tmp_path)


def test_a_check_imports_only_what_it_looks_at(tmp_path: Path) -> None:
    imported = printed(CHECK, tmp_path)
    assert sorted(NEEDED - imported) == []
    assert sorted(imported.intersection(NEEDLESS)) == []


def test_a_project_that_is_set_up_again_has_each_check_once(tmp_path: Path) -> None:
    """As for tests that override ``INSTALLED_APPS``."""
    assert printed(AGAIN, tmp_path) == {"none"}
