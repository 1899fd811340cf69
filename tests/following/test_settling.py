"""``manage.py enode parked``, and the admin's page of parked events."""

from __future__ import annotations

import io
import json

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from enode_django.admin.operating import CONFIRMED
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.models import ParkedEvent
from tests.following.domain import Added, Behaviour, Entries, Kindness
from tests.following.harness import Harness

PAGE = "/admin/enode_django/parkedevent/"
NAME = "following.entries"


@pytest.fixture
def parked(harness: Harness, behaviour: Behaviour) -> Harness:
    """Three aggregates with two versions each: "c" and "d" are parked at version 1, and "e" is handled."""
    behaviour.failing.update({"c": 1_000, "d": 1_000})
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
    for id in "cde":
        harness.deliver(subscription, harness.stored(id, Added(amount=1), Added(amount=2)))
    assert len(harness.parked(NAME)) == 2
    return harness


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("enode", "parked", *arguments, stdout=out)
    return out.getvalue()


def test_list_shows_what_is_parked_where_and_why(parked: Harness) -> None:
    shown = run("list")
    assert "following.entries" in shown
    assert "version 1" in shown
    assert "RuntimeError: told to fail at c/1/0" in shown
    assert shown.endswith("2 parked\n")
    assert "1 parked" in run("list", "d")
    assert "0 parked" in run("list", "--subscriber", "following.rows")


def test_list_shows_the_class_and_the_first_line_of_an_error_of_several_lines(parked: Harness) -> None:
    error = (
        'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\ndjango.db.utils.DataError: numeric field '
    )
    ParkedEvent.objects.filter(aggregate_root_id="c").update(
        error=f"{error}overflow\nDETAIL:  A field with precision 8"
    )
    shown = run("list", "c")
    assert "  DataError: numeric field overflow\n" in shown
    assert "DETAIL" not in shown


def test_an_id_that_would_control_the_terminal_is_shown_escaped(harness: Harness, behaviour: Behaviour) -> None:
    id = "c\x1b[2J\n2 parked"
    behaviour.failing[id] = 1_000
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
    harness.deliver(subscription, harness.stored(id, Added(amount=1)))
    escaped = "c\\x1b[2J\\n2 parked"
    assert escaped in run("list")
    behaviour.failing[id] = 0
    assert run("retry", "--all") == f"{NAME}: {escaped} goes on\n1 go on, 0 parked\n"


def test_list_as_json_has_everything(parked: Harness) -> None:
    rows = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert {row["aggregate_root_id"] for row in rows} == {"c", "d"}
    assert "Traceback" in rows[0]["error"]


def test_retry_of_all_lets_what_works_now_go_on(parked: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 0
    with pytest.raises(SystemExit) as ended:
        run("retry", "--all")
    assert ended.value.code == 1
    assert parked.entries("c") == [(1, 1), (2, 2)]
    assert [row.aggregate_root_id for row in parked.parked(NAME)] == ["d"]
    behaviour.failing["d"] = 0
    assert "1 go on, 0 parked" in run("retry", "d")


def test_skip_leaves_out_one_version(parked: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 0
    assert "goes on" in run("skip", "--subscriber", NAME, "c")
    assert parked.entries("c") == [(2, 2)]


def test_skip_for_all_subscribers_reaches_everyone_who_has_parked_the_aggregates(
    parked: Harness, behaviour: Behaviour
) -> None:
    kindness = park_too(parked, Kindness, "c")
    ParkedEvent.objects.filter(subscriber=NAME, aggregate_root_id="d").update(subscriber="following.removed")
    behaviour.failing.clear()
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("enode", "parked", "skip", "--all-subscribers", "d", "c", stdout=out, no_color=True)
    assert f"{NAME}: c goes on" in out.getvalue()
    assert f"{kindness}: c goes on" in out.getvalue()
    assert (
        "following.removed: d stays parked: the code has no such subscriber; manage.py enode forgets" in out.getvalue()
    )
    assert out.getvalue().endswith("2 go on, 1 parked\n")
    assert parked.entries("c") == [(2, 2)]


def park_too(harness: Harness, cls: type[Subscriber], id: str) -> str:
    """Park the aggregate for another subscriber, at the same version. Return the subscriber's name."""
    row = ParkedEvent.objects.get(subscriber=NAME, aggregate_root_id=id)
    row.pk, row.subscriber = None, subscribers.instance(cls).name
    row.save(force_insert=True)
    return row.subscriber


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["retry"], "say --all"),
        (["retry", "nobody"], "not parked: nobody"),
        (["skip", "c"], "--subscriber --all-subscribers is required"),
        (["skip", "--all-subscribers"], "aggregate"),
        (["skip", "--all-subscribers", "nobody"], "not parked: nobody"),
        (["list", "--subscriber", "bank.Nothing"], "no subscriber is named 'bank.Nothing'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_advice(parked: Harness, arguments: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        run(*arguments)


def post(client: Client, action: str) -> str:
    chosen = [str(pk) for pk in ParkedEvent.objects.filter(aggregate_root_id="c").values_list("pk", flat=True)]
    data = {"action": action, "_selected_action": chosen, CONFIRMED: "yes"}
    return client.post(PAGE, data, follow=True).content.decode()


def test_the_admin_retries_and_notes_who_did_it(parked: Harness, behaviour: Behaviour, admin_client: Client) -> None:
    assert f"Subscriber {NAME}: c is still parked: RuntimeError" in post(admin_client, "retry")
    behaviour.failing["c"] = 0
    assert f"Subscriber {NAME}: c goes on" in post(admin_client, "retry")
    assert parked.entries("c") == [(1, 1), (2, 2)]
    assert LogEntry.objects.filter(change_message__contains=NAME).count() == 2


def test_the_admin_skips(parked: Harness, behaviour: Behaviour, admin_client: Client) -> None:
    behaviour.failing["c"] = 0
    assert "goes on" in post(admin_client, "skip")
    assert parked.entries("c") == [(2, 2)]


def test_a_message_of_the_admin_names_a_removed_subscriber_as_it_is(parked: Harness, admin_client: Client) -> None:
    ParkedEvent.objects.filter(aggregate_root_id="c").update(subscriber="following.removed")
    assert "Subscriber following.removed: c: " in post(admin_client, "retry")


def test_the_admin_shows_errors_as_text_and_changes_nothing_else(parked: Harness, admin_client: Client) -> None:
    row = ParkedEvent.objects.get(aggregate_root_id="c")
    ParkedEvent.objects.filter(pk=row.pk).update(error="<script>alert(1)</script>")
    page = admin_client.get(f"{PAGE}{row.pk}/change/").content.decode()
    assert "<script>alert(1)</script>" not in page
    assert admin_client.post(f"{PAGE}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert admin_client.get(f"{PAGE}add/").status_code == 403


def test_who_may_only_look_is_offered_no_action(parked: Harness, behaviour: Behaviour, client: Client) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert client.get(PAGE).status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="view_parkedevent"))
    behaviour.failing["c"] = 0
    post(client, "skip")
    assert len(parked.parked(NAME)) == 2


def test_a_removed_subscriber_is_forgotten_with_its_group(parked: Harness, redis_url: str) -> None:
    from enode_django.conf import conf
    from enode_django.equeue.messages import Commit
    from enode_django.models import Checkpoint
    from enode_django.runtime import make_transport

    topic, name = conf().SUBSCRIBERS.TOPIC, "following.removed"
    Checkpoint.objects.filter(subscriber=NAME).update(subscriber=name)
    ParkedEvent.objects.update(subscriber=name)
    transport = make_transport()
    transport.create_topic(topic, 1)
    transport.acquire(name, topic, 0, "somebody", 60.0)
    out = io.StringIO()
    call_command("enode", "forgetsubscriber", name, stdout=out)
    assert "forgot following.removed: 5 rows, and its consumer group" in out.getvalue()
    assert not Checkpoint.objects.filter(subscriber=name).exists()
    assert parked.parked(name) == []
    epoch = transport.acquire("following.living", topic, 0, "somebody", 60.0).epoch
    transport.commit("following.living", topic, {0: Commit(epoch, transport.end_offsets(topic)[0])})
    transport.trim(topic)  # it only waits for following.living
    transport.retire_group("following.living", topic)
    transport.close()


def test_a_subscriber_that_is_still_declared_is_not_forgotten(parked: Harness) -> None:
    with pytest.raises(CommandError, match="is still declared"):
        call_command("enode", "forgetsubscriber", NAME)
    assert len(parked.parked(NAME)) == 2
