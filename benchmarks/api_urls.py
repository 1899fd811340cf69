"""The API, and an empty view with the work of every view."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class EmptyView(APIView):
    """A view that only authenticates and parses."""

    permission_classes = [IsAuthenticated]

    def post(self, request: Request) -> Response:
        return Response({"keys": len(request.data)}, 202)


urlpatterns = [path("api/", include("enode_django.api.urls")), path("empty/", EmptyView.as_view())]
