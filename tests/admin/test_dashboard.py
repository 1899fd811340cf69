"""The live dashboard on the server. `tests.browser.test_dashboard` tests it in a browser."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from enode_django.admin import dashboard
from enode_django.models import ProcessorReport
from tests.status.reports import figures, write_report

PAGE = "/admin/enode_django/processorreport/"
FIGURES, STATUS = f"{PAGE}figures/", f"{PAGE}status/"


@pytest.fixture
def operator(db: None, client: Client) -> Client:
    """Has no password, which would take as long as a test to hash."""
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_processorreport"))
    client.force_login(user)
    return client


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass for the charts: a supervisor counts as silent 15 seconds after its last report."""
    monkeypatch.setattr(dashboard, "_now", timezone.now().timestamp)


def ask(client: Client, since: object = 0, **parameters: str) -> dict[str, Any]:
    answer = client.get(FIGURES, {"since": since, **parameters})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def write_reports(supervisor: str = "a", *, rate: int = 10) -> datetime:
    """Write a report every five seconds for a minute. Return the time of the last one."""
    now = timezone.now()
    for at in range(5, 65, 5):
        write_report(supervisor, 60 - at, figures(rate * at), lived=at, now=now)
    return now


@pytest.mark.django_db
class TestPermissions:
    def test_a_stranger_is_sent_to_the_login(self, client: Client) -> None:
        for path in (PAGE, FIGURES, STATUS):
            answer = client.get(path)
            assert (answer.status_code, answer["Location"]) == (302, f"/admin/login/?next={path}")

    def test_staff_without_the_permission_see_nothing_of_it(self, client: Client) -> None:
        client.force_login(User.objects.create_user("clerk", is_staff=True))
        for path in (PAGE, FIGURES, STATUS):
            assert client.get(path).status_code == 403
        assert "processorreport" not in client.get("/admin/").content.decode()

    def test_the_permission_to_view_is_enough(self, operator: Client) -> None:
        for path in (PAGE, FIGURES, STATUS):
            assert operator.get(path).status_code == 200
        assert PAGE in operator.get("/admin/").content.decode()

    def test_links_lead_only_where_the_user_may_look(self, operator: Client, client: Client) -> None:
        assert operator.get(PAGE).context["links"] == {}
        user = User.objects.get(username="operator")
        user.user_permissions.add(Permission.objects.get(codename="view_job"))
        assert client.get(PAGE).context["links"] == {"jobs": "/admin/enode_django/job/"}

    def test_nobody_adds_changes_or_deletes(self, client: Client) -> None:
        client.force_login(User.objects.create_superuser("root"))
        write_report("a", 1, figures(1), lived=10)
        report = ProcessorReport.objects.get()
        for page in ("add/", f"{report.pk}/change/", f"{report.pk}/delete/"):
            assert client.post(f"{PAGE}{page}", {"post": "yes"}).status_code == 404
        client.post(PAGE, {"action": "delete_selected", "_selected_action": [report.pk], "post": "yes"})
        assert ProcessorReport.objects.get().figures == report.figures


@pytest.mark.django_db
@pytest.mark.usefixtures("standing_clock")
class TestFigures:
    def test_all_steps_come_first_and_then_what_is_new(self, operator: Client) -> None:
        now = write_reports()
        first = ask(operator)
        assert first["reporting"]
        _, *values = [value for value in first["charts"]["commands"]["finished"] if value is not None]
        assert values == pytest.approx([10] * len(values))
        assert len(first["ends"]) > 170
        write_report("a", -5, figures(750), lived=65, now=now)
        write_report("a", -10, figures(900), lived=70, now=now)
        second = ask(operator, first["until"])
        assert len(second["ends"]) < 10
        assert second["until"] >= first["until"]
        assert max(second["charts"]["commands"]["finished"]) == pytest.approx(30)

    def test_hosts_are_added_up(self, operator: Client) -> None:
        write_reports("a", rate=10)
        write_reports("b", rate=100)
        values = ask(operator)["charts"]["commands"]["finished"]
        assert values[-2] == pytest.approx(110, rel=0.01)

    def test_before_anything_was_reported_there_are_steps_without_values(self, operator: Client) -> None:
        answer = ask(operator)
        assert not answer["reporting"]
        assert set(answer["charts"]["commands"]["finished"]) == {None}

    @pytest.mark.parametrize("since", ["nan", "inf", "-inf", "1e300", "-1e300", "' OR 1=1 --", "<script>", "\x00", ""])
    def test_an_address_that_somebody_made_up_is_answered(self, operator: Client, since: str) -> None:
        write_reports()
        assert ask(operator, since)["reporting"]

    def test_a_poll_is_cheap(self, operator: Client, django_assert_max_num_queries: Any) -> None:
        write_reports()
        since = ask(operator)["until"]
        with django_assert_max_num_queries(6):  # the user (4), the time, the newest reports
            ask(operator, since)

    @pytest.mark.parametrize(("name", "hours"), [("15min", 0.25), ("1h", 1), ("6h", 6), ("24h", 24)])
    def test_a_range_has_as_many_steps_as_a_chart_can_show(self, operator: Client, name: str, hours: float) -> None:
        write_reports()
        ends = ask(operator, range=name)["ends"]
        assert 170 <= len(ends) <= 361
        assert ends[-1] - ends[0] == pytest.approx(hours * 3_600, rel=0.05)

    def test_steps_of_a_long_range_have_all_that_was_counted(self, operator: Client) -> None:
        now, begin = timezone.now(), 3 * 3_600
        for at in range(5, begin - 600, 20):  # it ended ten minutes ago
            write_report("a", begin - at, figures(10 * at), lived=at, now=now, ended=at + 20 >= begin - 600)
        ago = now.timestamp() - begin
        answer = ask(operator, range="24h")
        lived = [end for end in answer["ends"] if ago + 240 < end < now.timestamp() - 900]
        values = dict(zip(answer["ends"], answer["charts"]["commands"]["finished"], strict=True))
        assert len(lived) > 30
        assert [values[end] for end in lived] == pytest.approx([10] * len(lived), rel=0.01)

    def test_of_each_step_and_supervisor_one_report_is_read(self, operator: Client) -> None:
        now = timezone.now()
        for supervisor in ("a", "b"):
            for ago in range(2_000, 0, -10):
                write_report(supervisor, ago, figures(1), lived=5_000 - ago, now=now)
        reports = list(dashboard.reports(after=now.timestamp() - 2_400, width=240.0))
        assert len(reports) < 2 * 12
        assert max(report.at for report in reports) == pytest.approx(now.timestamp() - 10, abs=0.001)

    def test_one_that_fell_silent_does_not_hold_a_long_range_back(self, operator: Client) -> None:
        write_reports("b")
        write_report("a", 60, figures(1), lived=600)
        asked_at = timezone.now().timestamp()
        assert ask(operator, range="24h")["until"] > asked_at - 260

    @pytest.mark.parametrize(
        "strange",
        [
            *([], {"finished": None}, {"finished": "9"}, {"subscribers": None}, {"subscribers": {"a": 3}}),
            *({"backlog": {"events": 3}}, {"batch_sizes": {"buckets": {"1": None}}}, {"batch_sizes": 3}),
        ],
    )
    def test_a_report_of_a_strange_form_hides_no_other(self, operator: Client, strange: Any) -> None:
        write_reports("b", rate=100)
        for ago in (20, 15):
            write_report("a", ago, strange, lived=60 - ago)
        assert ask(operator)["charts"]["commands"]["finished"][-2] == pytest.approx(100, rel=0.01)

    def test_answers_are_not_kept_by_anybody(self, operator: Client) -> None:
        assert "no-store" in operator.get(FIGURES)["Cache-Control"]


@pytest.mark.django_db
class TestRange:
    def ranges(self, client: Client, **parameters: str) -> dict[str, bool]:
        """Return the ranges that the page offers, and whether it shows each."""
        context = client.get(PAGE, parameters).context
        return {one.name: one == context["range"] for one in context["ranges"]}

    def test_the_address_says_which_is_shown(self, operator: Client) -> None:
        assert self.ranges(operator) == {"15min": True, "1h": False, "6h": False, "24h": False}
        assert self.ranges(operator, range="6h")["6h"]
        page = operator.get(PAGE, {"range": "6h"}).content.decode()
        assert f'{FIGURES}?range=6h"' in page
        assert 'data-window="21600"' in page

    @pytest.mark.parametrize("name", ["", "7h", "<script>", "\0", "24H"])
    def test_one_that_somebody_made_up_is_the_shortest(self, operator: Client, name: str) -> None:
        assert self.ranges(operator, range=name)["15min"]
        assert len(ask(operator, range=name)["ends"]) < 182

    def test_only_what_rows_are_kept_for_is_offered(self, operator: Client) -> None:
        with override_settings(ENODE={**settings.ENODE, "REPORTS": {"RETENTION": timedelta(hours=1)}}):
            assert self.ranges(operator, range="24h") == {"15min": True, "1h": False}
            page = operator.get(PAGE, {"range": "1h"}).content.decode().replace("\xa0", " ")
        assert "A step is 10 seconds. Rows of figures are kept for 1 hour. Times in the charts are in UTC." in page
        with override_settings(ENODE={**settings.ENODE, "REPORTS": {"RETENTION": 60}}):
            assert self.ranges(operator) == {"15min": True}


@pytest.mark.django_db
def test_the_page_runs_under_a_strict_policy_and_loads_nothing_from_elsewhere(operator: Client) -> None:
    write_report("<script>alert(1)</script>", 1, figures(1), lived=10)
    page = operator.get(PAGE).content.decode()
    body = page[page.index('<div id="enode-dashboard"') : page.index('<footer id="footer"')]
    assert "<script>" not in page.replace('<script src="', "")
    assert "style=" not in body
    assert "onclick" not in body
    assert "//" not in body
    assert reverse("admin:enode_django_processorreport_figures") in body


@pytest.mark.django_db
def test_the_state_of_everything_comes_with_reasons(operator: Client) -> None:
    parts = operator.get(STATUS).json()["parts"]
    assert {"queue", "processors", "lag", "jobs"} <= parts.keys()
    assert "manage.py runprocessors" in parts["processors"]["problems"][0]["reason"]
