"""Answers to probes, which come from strangers."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings

from tests.status.conftest import Configure, broker_at
from tests.status.reports import JUST_NOW, figures, write_report

LIVE, READY = "/enode/health/live", "/enode/health/ready"


def test_live_asks_nobody(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any use of a database fails in this test, including the one that Django makes for `ATOMIC_REQUESTS`."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    for path in (LIVE, f"{LIVE}/"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert "no-store" in answer["Cache-Control"]


def test_probes_are_answered_where_everybody_else_has_to_log_in(client: Client) -> None:
    login = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, login]):
        assert client.get(LIVE).status_code == 200


def test_probes_change_nothing(client: Client) -> None:
    for path in (LIVE, READY):
        assert client.post(path).status_code == 405
        assert client.delete(path).status_code == 405


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("landed")
class TestReady:
    def ask(self, client: Client, query: str = "") -> HttpResponse:
        answer: HttpResponse = client.get(f"{READY}{query}")
        assert "no-store" in answer["Cache-Control"]
        return answer

    def test_a_stranger_is_told_whether_and_not_why(
        self, client: Client, configure: Configure, closed_port: int
    ) -> None:
        configure()
        answer = self.ask(client)
        assert (answer.status_code, answer.json()) == (
            200,
            {"status": "ok", "parts": {"database": "ok", "queue": "ok"}},
        )
        configure(QUEUE=broker_at(closed_port))
        answer = self.ask(client)
        assert (answer.status_code, answer.json()) == (
            503,
            {"status": "not ok", "parts": {"database": "ok", "queue": "not ok"}},
        )

    def test_who_may_view_the_reports_is_told_why(self, client: Client, configure: Configure, closed_port: int) -> None:
        configure(QUEUE=broker_at(closed_port))
        user = User.objects.create_user("operator", is_staff=True)
        client.force_login(user)
        assert "problems" not in self.ask(client).json()
        user.user_permissions.add(Permission.objects.get(codename="view_processorreport"))
        (reason,) = self.ask(client).json()["problems"]["queue"]
        assert "runbroker" in reason

    def test_in_development_everybody_is_told_why(self, client: Client, configure: Configure, closed_port: int) -> None:
        configure(QUEUE=broker_at(closed_port))
        with override_settings(DEBUG=True):
            assert self.ask(client).json()["problems"]["queue"]

    def test_processors_count_if_the_probe_says_so(self, client: Client, configure: Configure) -> None:
        configure()
        assert self.ask(client, "?processors").status_code == 503
        write_report("a", JUST_NOW, figures(1), lived=10)
        assert self.ask(client, "?processors").json()["parts"]["processors"] == "ok"

    def test_a_database_that_lacks_migrations_is_not_ready(
        self, client: Client, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure()
        monkeypatch.setattr("enode_django.monitoring.databases.unapplied_migrations", lambda alias: 3)
        client.force_login(User.objects.create_superuser("root"))
        answer = self.ask(client)
        assert (answer.status_code, answer.json()["parts"]["database"]) == (503, "not ok")
        assert "problems" not in answer.json(), "who is asking is not looked up in a database that is not well"
