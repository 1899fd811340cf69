"""Processes of process managers with a state in the admin."""

from __future__ import annotations

import html

import pytest
from django.db.models.functions import Now
from django.test import Client

from enode_django.eventing.state_types import FORMAT
from enode_django.models import ProcessState
from enode_django.serialization.plain import pack
from tests.admin.people import HOSTILE, logged_in

pytestmark = pytest.mark.django_db
LIST = "/admin/enode_django/processstate/"


def process(key: str, **more: object) -> ProcessState:
    state = FORMAT + pack({"paid": 40, "note": HOSTILE})
    return ProcessState.objects.create(
        **{"subscriber": "bank.transfers", "key": key, "state": state, "version": 2, "started_at": Now(), **more}
    )


def keys(client: Client, query: str = "") -> set[str]:
    page = client.get(LIST + query).content.decode()
    return {key for key in ("o-running", "o-ended", "o-waiting") if f">{key}</a>" in page}


def test_processes_are_listed_by_subscriber_and_phase_and_nobody_changes_them(client: Client) -> None:
    row = process("o-running")
    process("o-ended", ended_at=Now())
    process("o-waiting", subscriber="other", state=b"", started_at=None, waiting=[["p1/1/0", "p1", "c1"]])
    logged_in(client, "view_processstate")
    assert keys(client) == {"o-running", "o-ended", "o-waiting"}
    assert keys(client, "?phase=running") == {"o-running"}
    assert keys(client, "?phase=ended") == {"o-ended"}
    assert keys(client, "?phase=not+begun") == keys(client, "?subscriber=other") == {"o-waiting"}
    assert keys(client, "?q=o-ended") == {"o-ended"}
    assert 'name="action"' not in client.get(LIST).content.decode()
    page = f"{LIST}{row.pk}/change/"
    assert 'name="_save"' not in client.get(page).content.decode()
    assert client.post(page, {"key": "x"}).status_code == 403
    assert client.post(f"{LIST}{row.pk}/delete/").status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403


def test_a_state_is_for_those_who_may_view_payloads(client: Client) -> None:
    page = f"{LIST}{process('o-running').pk}/change/"
    assert "paid" not in logged_in(client, "view_processstate").get(page).content.decode()
    client.logout()
    from django.contrib.auth.models import User

    User.objects.all().delete()
    shown = logged_in(client, "view_processstate", "view_payload").get(page).content.decode()
    assert '"paid": 40' in html.unescape(shown)
    assert HOSTILE not in shown


def test_a_state_of_another_format_does_not_break_its_page(client: Client) -> None:
    page = f"{LIST}{process('o', state=b'nonsense').pk}/change/"
    shown = logged_in(client, "view_processstate", "view_payload").get(page).content.decode()
    assert "which is not a format of ours" in shown


def test_a_process_leads_to_the_streams_of_its_key_and_of_the_events_that_wait(client: Client) -> None:
    row = process("o1", state=b"", started_at=None, waiting=[["p1/1/0", "p1", "c1"], ["p1/2/0", "p1", "c2"]])
    shown = logged_in(client, "view_processstate", "view_eventstream").get(f"{LIST}{row.pk}/change/").content.decode()
    assert "p1/1/0, p1/2/0" in shown
    assert shown.count("/eventstream/aggregates/p1/") == 1
    assert "/eventstream/?q=o1" in shown
    client.logout()
    from django.contrib.auth.models import User

    User.objects.all().delete()
    assert "/eventstream/" not in logged_in(client, "view_processstate").get(f"{LIST}{row.pk}/change/").content.decode()
