"""A module that needs an extra says how to install it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.meta.tree import ROOT

IMPORTS = """
import sys

BLOCKED = {"rest_framework", "celery", "billiard"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import django
from django.conf import settings

APPS = ["django.contrib.contenttypes", "django.contrib.postgres", "enode_django"]
settings.configure(INSTALLED_APPS=APPS, SECRET_KEY="x")
django.setup()
from importlib import import_module

for name in ("enode_django.api.urls", "enode_django.serializers", "enode_django.tasks"):
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        print(error)
"""


def test_the_error_of_an_import_names_the_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'rest_framework is not installed; install it: pip install "enode_django[api]"',
        'rest_framework is not installed; install it: pip install "enode_django[api]"',
        'billiard is not installed; install it: pip install "enode_django[celery]"',
    ]
