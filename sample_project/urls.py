from __future__ import annotations

from pathlib import Path

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

ICON = (Path(__file__).parent / "favicon.svg").read_bytes()


def favicon(request: HttpRequest) -> HttpResponse:
    """Serve the icon, which browsers request for pages that name none, such as those of the admin."""
    return HttpResponse(ICON, content_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


urlpatterns = [
    path("favicon.ico", favicon),
    path("admin/", admin.site.urls),
    path("api/", include("enode_django.api.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="api-docs"),
    path("enode/health/", include("enode_django.health_urls")),
    path("conference/", include("sample_project.conference.urls")),
    path("", include("sample_project.bank.urls")),
]
