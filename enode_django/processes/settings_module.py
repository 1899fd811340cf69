"""The module name of the settings, for the processes that this one starts."""

from __future__ import annotations

import os

from django.conf import settings

from enode_django.exceptions import ConfigurationError

SETTINGS_VARIABLE = "DJANGO_SETTINGS_MODULE"


def settings_module() -> str:
    """Return the module name of this process's settings. Raises `ConfigurationError` if they were not loaded by a
    name."""
    module = os.environ.get(SETTINGS_VARIABLE) or getattr(settings, "SETTINGS_MODULE", None)
    if not module:
        raise ConfigurationError(
            f"other processes load the settings by the name in {SETTINGS_VARIABLE}, which is not set; settings given "
            "to settings.configure cannot reach them"
        )
    return str(module)
