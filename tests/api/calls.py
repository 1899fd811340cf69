"""Requests to the API, and checks that apply to every answer."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client

from enode_django.models import EventStream

COMMANDS = "/api/commands/"


class Caller(NamedTuple):
    client: Client
    user: User | None = None

    @property
    def key(self) -> str:
        """The user's primary key as metadata has it; empty for nobody."""
        return str(self.user.pk) if self.user is not None else ""

    def send(self, type: str, id: str, fields: Any = None, *, query: str = "", key: str = "", **headers: str) -> Any:
        body = {"type": type, "aggregate_root_id": id} | ({} if fields is None else {"fields": fields})
        if key:
            headers["Idempotency-Key"] = key
        return self.post(json.dumps(body), query, **headers)

    def post(self, body: str | bytes, query: str = "", **headers: str) -> Any:
        """``If_Match`` stands for the header If-Match."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"{COMMANDS}{query}", body, content_type="application/json", headers=named)

    def get(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> Any:
        return self.client.get(f"/api/{path}", query or {}, headers=headers)


def logged_in(*permissions: str, name: str = "clerk") -> Caller:
    """Somebody who has logged in and has these of our permissions."""
    user, _ = User.objects.get_or_create(username=name)
    streams = ContentType.objects.get_for_model(EventStream)
    Permission.objects.get_or_create(codename="view_payload", defaults={"content_type": streams})
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return Caller(client, user)


def problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    return body


def wrong_parts(response: Any) -> dict[str, str]:
    """Return the errors of an invalid request by their place."""
    found = problem(response, 400)
    assert found["type"] == "urn:problem-type:enode:invalid"
    return {each.get("pointer") or each["parameter"]: each["detail"] for each in found["errors"]}
