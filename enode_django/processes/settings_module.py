"""The name by which processes that this one starts load the same settings."""

from __future__ import annotations

import os

from django.conf import settings

from enode_django.exceptions import ConfigurationError

SETTINGS_VARIABLE = "DJANGO_SETTINGS_MODULE"


def settings_module() -> str:
    """Return the name by which this process has loaded its settings. Raises `ConfigurationError` if it has not loaded
    them by a name."""
    module = os.environ.get(SETTINGS_VARIABLE) or getattr(settings, "SETTINGS_MODULE", None)
    if not module:
        raise ConfigurationError(
            f"other processes load the settings by the name in {SETTINGS_VARIABLE}, which is not set; settings given "
            "to settings.configure cannot reach them"
        )
    return str(module)
