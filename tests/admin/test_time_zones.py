"""The admin in projects without ``USE_TZ``, whose models have times without a zone, and far from Greenwich."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from enode_django.admin.moments import shown_moment
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import EventStream
from tests.admin.test_topics import operate, queue
from tests.admin.users import client_of

__all__ = ["queue"]

pytestmark = pytest.mark.django_db

ADMIN = "/admin/enode_django/"


@pytest.fixture(autouse=True)
def naive_times(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kathmandu"


def test_the_lag_of_subscribers_is_shown(streams: Sequence[EventStream]) -> None:
    answer = client_of("view_subscriber").get(f"{ADMIN}subscriber/")
    assert answer.status_code == 200
    assert all(row.lag.seconds < 600 for row in answer.context["rows"] if row.lag.seconds is not None)


def test_times_have_the_zone_of_the_site(streams: Sequence[EventStream]) -> None:
    page = client_of("view_eventstream").get(f"{ADMIN}eventstream/").content.decode()
    times = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', page)
    assert len(times) == len(streams)
    assert all(moment.endswith("+05:45") for pair in times for moment in pair)


def test_a_time_that_the_zone_of_the_site_does_not_have_is_shown_in_its_own() -> None:
    assert "9999-12-31 23:59:59+00:00" in shown_moment(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


def test_an_offset_is_set_to_a_time_of_the_site(queue: MemoryTransport) -> None:
    client = client_of("view_topic", "change_topic")
    values = {"group": "billing", "place": "time", "time": "2001-01-01 12:00"}
    assert "goes back from" in operate(client, "orders", "set-offset", values)
