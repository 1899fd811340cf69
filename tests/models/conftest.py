"""`pytest tests/models` takes some seconds; `pytest tests/models --hypothesis-profile=long` looks for defects, for many
minutes."""

from __future__ import annotations

from hypothesis import settings

from tests.models.profiles import LONG

settings.register_profile(LONG, deadline=None, print_blob=True)
