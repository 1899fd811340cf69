from __future__ import annotations

from django.test import Client


def test_browsers_get_the_icon_that_they_ask_for(client: Client) -> None:
    response = client.get("/favicon.ico")
    assert (response.status_code, response["Content-Type"]) == (200, "image/svg+xml")
    assert response.content.startswith(b"<svg")
