"""URLs of the health checks. Include them: ``path("enode/health/", include("enode_django.health_urls"))``."""

from __future__ import annotations

from django.urls import re_path

from enode_django.monitoring import health

app_name = "enode_health"

# With or without a slash: a redirect is not an answer to a probe.
urlpatterns = [
    re_path(r"^live/?$", health.live, name="live"),
    re_path(r"^ready/?$", health.ready, name="ready"),
]
