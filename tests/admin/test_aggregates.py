"""The aggregate pages of the event browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from enode_django import execute_command, metadata
from enode_django.admin import aggregate_page, links, packed
from enode_django.eventstore.base import StreamRecord
from enode_django.history.reaching import Reached
from enode_django.models import EventStream
from enode_django.runtime import make_store
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, StartTransfer
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db


def page(client: Client, id: str = "a", **parameters: object) -> str:
    response = client.get(links.aggregate_url(id), parameters)
    assert response.status_code == 200
    return response.content.decode()


def section(text: str, name: str) -> str:
    """Return the section without tags, each run of blanks as one."""
    found = re.search(rf'<section class="module" id="{name}">(.*?)</section>', text, re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found[1])) if found else ""


def plant(id: str, count: int = 1) -> None:
    nothing = STREAM + pack(([("gone.Done", 1, {"n": 1})], None))
    make_store().append(
        [
            StreamRecord(id, version, f"{id}-{version}", "gone.Type", "gone.Do", datetime.now(UTC), nothing, b"")
            for version in range(1, count + 1)
        ]
    )


def test_a_page_shows_the_timeline_the_state_and_what_changed(reader: Client, streams: Sequence[EventStream]) -> None:
    text = page(reader)
    assert "2.50" in section(text, "state")
    assert "balance changed" in section(text, "difference")
    timeline = section(text, "timeline")
    assert re.search(r"2 .* bank.Deposit deposit-1 teller-7 bank.Deposited", timeline)
    assert "bank.OpenAccount" in timeline
    assert "bank.Withdraw" in section(text, "refusals")
    assert "bank.AccountSummaries 2 up to date" in section(text, "subscribers")


def test_subscribers_are_links_for_who_may_see_their_page(streams: Sequence[EventStream]) -> None:
    link = '<a href="/admin/enode_django/subscriber/#subscriber-bank-accountsummaries">bank.AccountSummaries</a>'
    assert link not in page(client_of("view_eventstream"))
    assert link in page(client_of("view_eventstream", "view_subscriber"))


def test_a_user_who_exists_is_shown_by_name(reader: Client, streams: Sequence[EventStream]) -> None:
    ada = User.objects.create_user("ada-the-teller")
    with inline(followed_by=[]):
        for user in (str(ada.pk), "0", "9" * 30, "-1", "a\0"):
            with metadata(user_id=user):
                execute_command(Deposit("b", amount=Decimal(1)))
    timeline = section(page(reader, "b"), "timeline")
    assert "ada-the-teller bank.Deposited" in timeline
    assert f"{'9' * 30} bank.Deposited" in timeline
    assert "-1 bank.Deposited" in timeline


def test_the_lag_of_a_subscriber_is_told_in_versions(
    reader: Client, streams: Sequence[EventStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [Reached("bank.Ledger", 1, 1), Reached("bank.transfers", 0, 2, parked="ValueError")]
    monkeypatch.setattr(aggregate_page, "reached", lambda id: late)
    text = section(page(reader), "subscribers")
    assert "bank.Ledger 1 behind by 1 version " in text
    assert "bank.transfers 0 parked by ValueError, behind by 2 versions " in text


def test_any_version_and_any_two_are_shown_without_javascript(reader: Client, streams: Sequence[EventStream]) -> None:
    text = page(reader, version=1)
    assert "State at version 1" in section(text, "state")
    assert "2.50" not in section(text, "state")
    assert "Difference from version 0 to 1" in section(text, "difference")
    assert "owner added" in section(text, "difference")
    back = section(page(reader, version=1, other=2), "difference")
    assert re.search(r"balance changed 2.50 0 ", back)
    assert "No difference." in section(page(reader, version=1, other=1), "difference")


def test_a_state_is_to_be_had_as_json(reader: Client, streams: Sequence[EventStream]) -> None:
    answer = reader.get(links.state_url("a"), {"version": 2}).json()
    assert answer["version"] == 2
    assert ["balance", "2.50"] in answer["lines"]
    assert reader.get(links.state_url("a"), {"version": 3}).status_code == 422
    assert reader.get(links.state_url("nobody"), {"version": 1}).status_code == 404
    for wrong in ("", "x", "0", "-1", "1.5", "9" * 5_000, "\0", "' OR 1=1 --"):
        assert reader.get(links.state_url("a"), {"version": wrong}).status_code == 400


def test_without_its_class_an_aggregate_shows_its_events(reader: Client) -> None:
    plant("x")
    text = page(reader, "x")
    assert "no AggregateRoot is named &#x27;gone.Type&#x27;" in section(text, "state")
    assert "gone.Done" in section(text, "timeline")
    assert "gone.Done" in section(text, "causation")


def test_a_very_long_history_is_not_replayed_and_the_page_says_so(
    reader: Client, streams: Sequence[EventStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate_page, "MOST_REPLAYED", 1)
    text = page(reader)
    assert "1 is the most" in section(text, "state")
    assert "1 is the most" in section(text, "difference")
    assert "deposit-1" in section(text, "timeline")


def test_the_timeline_goes_by_versions(reader: Client) -> None:
    plant("x", 120)
    seen: list[int] = []
    url = links.aggregate_url("x")
    while url:
        text = reader.get(url).content.decode()
        seen += map(int, re.findall(r"x-(\d+)</a>", text))
        older = re.search(r'rel="next" href="([^"]*)"', text)
        url = older[1].replace("&amp;", "&") if older else ""
    assert seen == list(range(120, 0, -1))


def test_a_stream_of_many_bytes_is_not_taken_for_a_line_of_the_timeline(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("x")
    assert "gone.Done" in section(page(reader, "x"), "timeline")
    monkeypatch.setattr(packed, "SMALL", 10)
    timeline = section(page(reader, "x"), "timeline")
    assert "many bytes of events" in timeline
    assert "gone.Done" not in timeline


def test_numbers_are_numbers_where_the_site_groups_their_digits(reader: Client) -> None:
    plant("x", 1_200)
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        text = page(reader, "x")
    assert 'max="1200"' in text
    assert "version=1200" in text
    assert "below=1151" in text
    assert re.search(r'<svg[^>]* viewBox="0 0 \d+ \d+"', text)


def test_a_causation_is_a_picture_with_links(reader: Client, streams: Sequence[EventStream]) -> None:
    with inline(followed_by=["bank.transfers"]):
        execute_command(Deposit("a", amount=Decimal(5)))
        execute_command(StartTransfer("t/1", source="a", target="b", amount=Decimal(1)))
    text = page(reader, "t/1", version=1)
    assert "<svg" in text
    drawn = section(text, "causation")
    for name in ("bank.StartTransfer", "bank.TransferStarted", "bank.ReserveDeposit", "bank.DepositConfirmed"):
        assert name in drawn
    assert f"{links.aggregate_url('b')}?version=" in text
    assert "bank.StartTransfer" in section(page(reader, "b"), "causation")


def test_a_refusal_has_a_causation_by_its_command(reader: Client, streams: Sequence[EventStream]) -> None:
    drawn = section(page(reader, command=streams[2].command_id), "causation")
    assert "bank.InsufficientFunds" in drawn
    assert "has no command" in section(page(reader, command="nothing"), "causation")


def test_who_may_not_read_contents_sees_envelopes_only(viewer: Client, streams: Sequence[EventStream]) -> None:
    text = page(viewer)
    assert not section(text, "state") + section(text, "difference") + section(text, "causation")
    assert "deposit-1" in section(text, "timeline")
    assert "bank.AccountSummaries 2" in section(text, "subscribers")
    assert "<svg class" not in text


def test_an_id_may_hold_anything(reader: Client) -> None:
    for id in ("a/b", "/", ".", "..", "a?b#c", "%2F", "<b>", "_2F", "é ü", "a\nb", " ", "a&b=c", "x/state", "x/change"):
        plant(id)
        assert reader.get(links.aggregate_url(id)).context["aggregate"].id == id
        stream = EventStream.objects.get(aggregate_root_id=id)
        assert links.aggregate_url(id) in reader.get(links.stream_url(stream.pk, "default")).content.decode()
        assert reader.get(links.state_url(id), {"version": 1}).status_code == 422


def test_strange_numbers_give_a_page(reader: Client, streams: Sequence[EventStream]) -> None:
    for wrong in ("0", "-1", "x", "1.5", "9" * 30, "9" * 5_000, "\0", "' OR 1=1 --", "<script>alert(1)</script>"):
        text = page(reader, **dict.fromkeys(("version", "other", "below", "command"), wrong))
        assert "<script>alert(1)" not in text
    assert page(reader, version=7)
    assert page(reader, other=7)


def test_an_aggregate_that_is_not_there_is_not_found(reader: Client) -> None:
    for path in ("nobody", "%00", "x" * 300, "_00", "%ED%A0%BD"):
        missing = reader.get(f"/admin/enode_django/eventstream/aggregates/{path}/")
        assert missing.status_code == 404
        assert "Nothing is stored of an aggregate with the id" in missing.content.decode()


def test_nothing_on_the_pages_needs_inline_scripts_or_styles(reader: Client, streams: Sequence[EventStream]) -> None:
    lists = "/admin/enode_django/eventstream/"
    for url in (lists, f"{lists}?q=a", links.stream_url(streams[0].pk, "default"), links.aggregate_url("a")):
        text = reader.get(url).content.decode()
        content = text[text.index('<div id="content"') : text.index("<footer")]
        assert not re.findall(r"<script(?! src)|<style|\sstyle=|\son\w+=", content)
