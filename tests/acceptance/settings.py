"""The sample's settings for processors under test. The environment carries the changes of a test."""

from __future__ import annotations

import json
import os

from sample_project.layers import merged
from sample_project.settings import *  # noqa: F403
from sample_project.settings import ENODE as SAMPLE_ENODE
from sample_project.settings import PROCESSOR_APPS

ROOT_URLCONF = __name__
urlpatterns: list[object] = []

# Each of some thousand processes would take a quarter of a second to import the others.
INSTALLED_APPS = [*PROCESSOR_APPS, *os.environ.get("ACCEPTANCE_APPS", "").split()]
ENODE = merged(SAMPLE_ENODE, json.loads(os.environ.get("ACCEPTANCE_ENODE", "{}")))
globals().update(json.loads(os.environ.get("ACCEPTANCE_CELERY", "{}")))
