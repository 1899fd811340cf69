"""The pages of the queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import quote, urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings
from django.utils import timezone

from enode_django.admin.new_commands import NewCommand
from enode_django.admin.operating import CONFIRMED
from enode_django.admin.readable import readable
from enode_django.admin.showing import MOST_TEXT
from enode_django.equeue.dead_letters import dead_letters, discard
from enode_django.equeue.messages import Commit
from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.dead_letters import DeadLetter, PostgresDeadLetters
from enode_django.models import OperatorAction
from enode_django.serialization.codec import decode_command, decode_metadata, encode_command
from enode_django.serialization.plain import pack
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.waiting import wait_until
from tests.admin.users import client_of
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/topic/"
SCRIPT = "<script>alert(1)</script>"
DEPOSIT = Deposit("ada", amount=Decimal("2.50"))
_memory = MemoryTransport()


def shared_memory(location: str) -> MemoryTransport:
    return _memory


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTransport]:
    """Yield the transport that the settings name: it has a topic with a group, and the topic of its dead letters. No
    worker answers what is sent to it."""
    global _memory
    monkeypatch.setattr(NewCommand, "timeout", 0.05)
    _memory = MemoryTransport()
    _memory.create_topic("orders", 2)
    _memory.send("orders", {0: [b"a", b"b", b"c"]})
    _memory.announce("orders", f"host-{SCRIPT}")
    lease = _memory.acquire("billing", "orders", 0, "one", 60)
    _memory.commit("billing", "orders", {0: Commit(lease.epoch, 2)})
    _memory.join("billing", "orders", f"member-{SCRIPT}", 60)
    _memory.create_topic("dead.billing", 1)
    command = encode_command(OpenAccount("ada", owner=SCRIPT), b"")
    letters = [Failed(Message("orders", 0, at, command, 3), f"ValueError: {SCRIPT}", 1e9, 0.0) for at in range(2)]
    _memory.send("dead.billing", {0: [encode_failed(letter) for letter in letters]})
    with override_settings(ENODE={**REAL_QUEUE, "QUEUE": {"BACKEND": f"{__name__}.shared_memory"}}):
        yield _memory


def keep_letter(id: str) -> None:
    PostgresDeadLetters().keep([DeadLetter(id, id, id, "t", "commands", 0, 0, "KeyError", "", b"", False)])


def operate(client: Client, topic: str, name: str, values: dict[str, str], **more: str) -> str:
    """Fill the form in, and confirm what it says, which is returned."""
    url = f"{LIST}{topic}/operate/{name}/"
    assert client.get(url).status_code == 200
    said = client.post(url, values)
    assert said.status_code == 200
    done = client.post(url, {**values, CONFIRMED: "yes"})
    assert done.status_code == 302, done.context["form"].errors
    return said.content.decode()


def test_the_dead_letters_of_every_group_are_counted_in_one_list(queue: MemoryTransport) -> None:
    client = client_of("view_topic")
    assert [row[:3] for row in client.get(LIST).context["letters"]] == [("messages", "billing", 2)]
    keep_letter("c")
    ((_, _, _, commands), (_, _, _, messages)) = client.get(LIST).context["letters"]
    assert (commands, messages) == ("/admin/enode_django/deadletter/", f"{LIST}dead.billing/letters/")
    assert client.get(messages).status_code == 200
    discard(queue, "billing", [0, 1])
    assert [row[:3] for row in client.get(LIST).context["letters"]] == [("commands", "processors", 1)]


def test_a_topic_has_a_summary_above_its_queues(queue: MemoryTransport) -> None:
    page = client_of("view_topic").get(f"{LIST}orders/change/").content.decode()
    summary = re.sub(r"<[^>]+>|\s+", " ", page[page.index("Summary</th>") : page.index(">Queues</h2>")])
    assert "Stored 2 3 Backlog of billing 2 1 1 1 " in re.sub(r" +", " ", summary)


def test_messages_have_the_time_they_were_made_and_their_key(queue: MemoryTransport) -> None:
    command = Deposit("account-7", amount=Decimal(1))
    queue.send("orders", {1: [encode_command(command, b""), b"?"]})
    found = client_of("view_topic", "view_payload").get(f"{LIST}orders/messages/1/").context["messages_found"]
    first, second = (one["origin"] for one in found)
    assert first.key == "account-7"
    assert abs((first.made_at - timezone.now()).total_seconds()) < 60
    assert second == ("", None)


def test_a_time_that_is_not_known_is_left_out(queue: MemoryTransport) -> None:
    client = client_of("view_topic", "view_payload")
    assert "Made at" not in client.get(f"{LIST}orders/messages/0/").content.decode()
    assert "made at" not in client.get(f"{LIST}orders/messages/0/0/").content.decode()
    queue.send("orders", {1: [encode_command(Deposit("account-7", amount=Decimal(1)), b""), b"?"]})
    page = client.get(f"{LIST}orders/messages/1/").content.decode()
    assert "Made at" in page
    assert page.count("<time") == 1
    assert "<td></td>" in page
    assert re.search(r"made at <time [^>]*>20\d\d-", client.get(f"{LIST}orders/messages/1/0/").content.decode())


def test_topics_queues_groups_owners_and_producers_are_shown(queue: MemoryTransport) -> None:
    client = client_of("view_topic")
    listed = client.get(LIST).content.decode()
    assert f'<a href="{LIST}orders/change/">orders</a>' in listed
    assert "billing" in listed
    page = client.get(f"{LIST}orders/change/").content.decode()
    for heading in ("First offset", "End offset", "Committed offset", "Backlog (messages)", "Assigned to"):
        assert f">{heading}</th>" in page
    for shown in ("Group billing", "Backlog 1 message, division number 1,", "s left)", "host-", "member-"):
        assert shown in page
    assert SCRIPT not in listed + page
    assert "operate/" not in page, "who may only view is offered nothing else"
    assert 'href="/admin/enode_django/topic/"' in client.get("/admin/").content.decode()


def test_an_offset_is_set_after_a_page_that_says_what_follows(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    said = operate(client, "orders", "set-offset", {"group": "billing", "queue": "0", "place": "first"})
    assert "goes back from 2 to 0; 2 messages are handled again" in said
    assert queue.committed("billing", "orders")[0] == 0
    said = operate(client, "orders", "set-offset", {"group": "billing", "place": "offset", "offset": "99"})
    assert "Queue 0: goes on from 0 to 3" in said
    assert "Queue 1: stays at 0" in said
    assert queue.committed("billing", "orders") == {0: 3, 1: 0}
    operate(client, "orders", "set-offset", {"group": "billing", "place": "time", "time": "2001-01-01 12:00"})
    assert queue.committed("billing", "orders") == {0: 0, 1: 0}
    logged = LogEntry.objects.earliest("pk")
    assert (logged.object_id, logged.get_admin_url()) == ("orders", f"{LIST}orders/change/")
    assert logged.get_change_message() == "offsets of group billing in topic orders were set: queue 0 from 2 to 0"


def test_queues_are_hidden_shown_and_added(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    said = operate(client, "orders", "show", {"queue": "1", "producers": "hide", "unordered": "on"})
    assert "gets no more messages by key" in said
    assert queue.route("orders").queues == (0,)
    operate(client, "orders", "show", {"queue": "1", "producers": "show", "consumers": "hide", "unordered": "on"})
    assert (queue.queues("orders")[1].to_producers, queue.queues("orders")[1].to_consumers) == (True, False)
    assert "hidden" in client.get(f"{LIST}orders/change/").content.decode()
    operate(client, "orders", "add-queues", {"queues": "4", "unordered": "on"})
    assert queue.queue_count("orders") == 4
    assert LogEntry.objects.count() == 3


def test_what_the_queue_refuses_is_said_and_in_the_audit_trail_alone(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    backlog = {"queues": "4", CONFIRMED: "yes"}
    assert "has 1 messages" in client.post(f"{LIST}orders/operate/add-queues/", backlog).content.decode()
    fewer = client.post(f"{LIST}orders/operate/add-queues/", {"queues": "2"}).content.decode()
    assert "queues are never taken away" in fewer
    members = client.post(f"{LIST}orders/operate/delete-group/", {"group": "billing", CONFIRMED: "yes"})
    assert "has members" in members.content.decode()
    assert queue.queue_count("orders") == 2
    assert "billing" in queue.groups("orders")
    assert not LogEntry.objects.exists()
    assert [(row.action, row.details) for row in OperatorAction.objects.order_by("pk")] == [
        ("add-queues", "ended by QueueBacklog"),
        ("delete-group", "ended by QueueError"),
    ]
    operate(client, "orders", "delete-group", {"group": "billing", "living": "on"})
    assert queue.groups("orders") == {}


def test_topic_in_use_is_deleted_by_force_only_with_what_its_groups_have_left(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    refused = client.post(f"{LIST}orders/operate/delete-topic/", {CONFIRMED: "yes"}).content.decode()
    assert "is in use" in refused
    assert queue.topics() == ["dead.billing", "orders"]
    said = operate(client, "orders", "delete-topic", {"force": "on"})
    assert "with its 3 messages" in said
    assert "Group billing loses its offsets; 1 messages left, 1 members" in said
    assert queue.topics() == []
    assert LogEntry.objects.get().get_change_message() == "deleted: orders, dead.billing"
    assert client.get(f"{LIST}orders/change/").status_code == 404


def test_a_hidden_queue_is_deleted(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    assert "delete-queue" not in client.get(f"{LIST}orders/change/").content.decode()
    queue.show("orders", 0, to_producers=False, to_consumers=False, unordered=True)
    assert "delete-queue/?queue=0" in client.get(f"{LIST}orders/change/").content.decode()
    refused = client.post(f"{LIST}orders/operate/delete-queue/", {"queue": "0", CONFIRMED: "yes"}).content.decode()
    assert "is in use" in refused
    assert "Its number stays, hidden" in operate(client, "orders", "delete-queue", {"queue": "0", "force": "on"})
    assert queue.queues("orders")[0].first == queue.queues("orders")[0].end


def test_a_group_is_paused_and_resumed(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    assert "Resume" not in client.get(f"{LIST}orders/change/").content.decode()
    said = operate(client, "orders", "pause", {"group": "billing", "paused": "yes"})
    assert "consumes nothing of topic orders until it is resumed" in said
    assert queue.paused_groups("orders") == ["billing"]
    page = client.get(f"{LIST}orders/change/").content.decode()
    assert '<span class="enode-alert">paused</span>' in page
    assert "paused=no" in page
    assert "get the queues" in operate(client, "orders", "pause", {"group": "billing", "paused": "no"})
    assert queue.paused_groups("orders") == []


def test_the_retention_of_a_topic_is_set_and_taken_back(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    assert "kept for 3600 seconds" in operate(client, "orders", "retention", {"seconds": "3600"})
    assert queue.retention("orders") == 3_600
    assert "for 3600 seconds" in client.get(f"{LIST}orders/change/").content.decode()
    assert "settings of the queue" in operate(client, "orders", "retention", {"seconds": ""})
    assert queue.retention("orders") is None


def test_messages_are_shown_from_a_time_on(queue: MemoryTransport) -> None:
    client = client_of("view_topic", "view_payload")
    page = client.get(f"{LIST}orders/messages/0/?at=2001-01-31T12:00").content.decode()
    assert all(f"messages/0/{offset}/" in page for offset in range(3))
    assert 'value="2001-01-31T12:00"' in page
    assert "There are no messages here" in client.get(f"{LIST}orders/messages/0/?at=2999-01-31T12:00").content.decode()


def test_dead_letters_are_looked_at_sent_anew_and_discarded(queue: MemoryTransport) -> None:
    client = client_of("change_topic", "view_payload")
    listed = client.get(f"{LIST}dead.billing/letters/").content.decode()
    assert "ValueError: &lt;script&gt;" in listed
    letter = client.get(f"{LIST}dead.billing/messages/0/1/").content.decode()
    for shown in ("a command", "bank.OpenAccount", "ada", "&lt;script&gt;"):
        assert shown in letter
    assert SCRIPT not in listed + letter
    said = operate(client, "dead.billing", "requeue", {"offsets": "1"})
    assert "The dead letters of group billing at 1 are sent to its own retries" in said
    assert queue.end_offsets("retry.billing") == {0: 1}
    said = operate(client, "dead.billing", "discard", {"offsets": ""})
    assert "All dead letters of group billing (1) are gone for good" in said
    assert list(dead_letters(queue, "billing")) == []
    assert queue.end_offsets("retry.billing") == {0: 1}
    assert {entry.object_id for entry in LogEntry.objects.all()} == {"dead.billing"}


@pytest.mark.parametrize("name", ["discard", "requeue"])
def test_all_letters_are_those_that_were_there_when_the_form_was_shown(queue: MemoryTransport, name: str) -> None:
    client = client_of("change_topic")
    url = f"{LIST}dead.billing/operate/{name}/"
    values = {"before": client.get(url).context["form"]["before"].value(), "offsets": ""}
    letter = Failed(Message("orders", 0, 2, b"?", 3), "ValueError: late", 1e9, 0.0)
    queue.send("dead.billing", {0: [encode_failed(letter)]})
    assert "All dead letters of group billing (2)" in client.post(url, values).content.decode()
    client.post(url, {**values, CONFIRMED: "yes"})
    assert [one.offset for one in dead_letters(queue, "billing")] == [2]
    client.post(url, {**values, "offsets": "2", CONFIRMED: "yes"})
    assert list(dead_letters(queue, "billing")) == []


def test_a_command_like_one_of_a_topic_does_not_follow_from_it(queue: MemoryTransport) -> None:
    queue.create_topic("commands", 8)
    queue.send("commands", {0: [encode_command(DEPOSIT, b"")]})
    client = client_of("change_topic", "view_topic", "view_payload")
    url = f"{LIST}commands/messages/0/0/command/?type=bank.Deposit"
    form = client.get(url).context["form"]
    values = {"aggregate_root_id": "bob", "amount": "3", "command_id": form["command_id"].value()}
    assert "stays" not in client.post(url, values).content.decode()
    assert client.post(url, {**values, CONFIRMED: "yes"}).status_code == 302
    wait_until(lambda: sum(queue.end_offsets("commands").values()) == 2, "the command in its topic")
    bodies = [
        body for batch in queue.pull("commands", dict.fromkeys(range(8), 0), limit=9, wait=0) for body in batch.bodies
    ]
    (sent,) = (wire for wire in map(decode_command, bodies) if wire.aggregate_root_id == "bob")
    assert decode_metadata(sent.metadata).causation_id is None
    action = OperatorAction.objects.get(action="send command")
    found = client_of("view_operatoraction").get("/admin/enode_django/operatoraction/", {"q": "bob"})
    assert action in found.context["cl"].result_list, "by the aggregate in its details"


def test_a_command_that_was_put_aside_is_corrected_and_sent_as_a_new_one(queue: MemoryTransport) -> None:
    body = pack((("commands", 0, 7), ("HandlerNotFound", SCRIPT), encode_command(DEPOSIT, b"")))
    queue.create_topic("commands.dead-letters", 1)
    queue.send("commands.dead-letters", {0: [body, b"no command"]})
    client = client_of("change_topic", "view_payload")
    page = f"{LIST}commands.dead-letters/messages/0/0/"
    shown = client.get(page).content.decode()
    assert "from queue 0 of commands, offset 7" in shown
    assert f"{page}command/" in shown
    assert SCRIPT not in shown
    assert '"bank.Deposit" selected' in client.get(f"{page}command/").content.decode()
    url = f"{page}command/?type=bank.Deposit"
    form = client.get(url).context["form"]
    assert (form["amount"].value(), form["aggregate_root_id"].value()) == (Decimal("2.50"), "ada")
    values = {"aggregate_root_id": "bob", "amount": "3", "command_id": form["command_id"].value()}
    assert client.post(url, {**values, CONFIRMED: "yes"}).status_code == 302
    (sent,) = [batch.bodies for batch in queue.pull("commands", dict.fromkeys(range(8), 0), limit=9, wait=60)]
    wire = decode_command(sent[0])
    assert (wire.type_name, wire.aggregate_root_id, wire.fields) == ("bank.Deposit", "bob", {"amount": Decimal(3)})
    assert decode_metadata(wire.metadata).causation_id == DEPOSIT.id
    assert LogEntry.objects.get().object_id == "commands.dead-letters"
    assert client.get(f"{LIST}commands.dead-letters/messages/0/1/command/").status_code == 404
    for forbidden in (client_of("change_topic"), client_of("view_topic", "view_payload")):
        assert forbidden.post(url, {**values, CONFIRMED: "yes"}).status_code == 403
    forger = client_of("change_topic", "view_payload", checks=True)
    assert forger.post(url, {**values, CONFIRMED: "yes"}).status_code == 403
    assert sum(queue.end_offsets("commands").values()) == 1


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xc1", b"[" * 100_000, b"\x91" * 5_000, bytes(range(256)), b"\x93\xc0\x92\xa1a\xa1b\xc0"),
        b'["half a character: \\ud800"]',
    ],
)
def test_whatever_is_in_a_message_it_can_be_shown(queue: MemoryTransport, body: bytes) -> None:
    queue.send("orders", {1: [body]})
    client = client_of("change_topic", "view_payload")
    for page in ("orders/messages/1/", "orders/messages/1/0/"):
        assert client.get(LIST + page).status_code == 200
    assert client.get(f"{LIST}orders/messages/1/0/command/").status_code == 404


def test_a_deep_message_is_cut_before_its_indentation_is_written() -> None:
    shown = readable(b"[" * 200 + b",".join([b"1"] * 20_000) + b"]" * 200)
    assert shown.kind == "JSON"
    assert len(shown.text) < 2 * MOST_TEXT


def test_messages_are_shown_page_by_page(queue: MemoryTransport) -> None:
    queue.send("orders", {1: [f"message {number}".encode() for number in range(70)]})
    client = client_of("view_topic", "view_payload")
    newest = client.get(f"{LIST}orders/messages/1/")
    assert "message 69" in newest.content.decode()
    assert newest.context["earlier"] == 0
    assert "message 19" not in newest.content.decode()
    assert "message 0" in client.get(f"{LIST}orders/messages/1/", {"offset": "0"}).content.decode()
    assert "no messages here" in client.get(f"{LIST}orders/messages/1/", {"offset": "70"}).content.decode()


def test_numbers_are_numbers_where_the_site_groups_their_digits(queue: MemoryTransport) -> None:
    """``1,200`` would be two offsets of dead letters, 1 and 200."""
    queue.send("orders", {1: [b"x"] * 1_300})
    queue.send("dead.billing", {0: [b"x"] * 1_300})
    client = client_of("change_topic", "view_payload")
    pages = ("orders/messages/1/?offset=1200", "dead.billing/messages/0/1200/", "orders/change/")
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        earlier, letter, topic = (client.get(LIST + page).content.decode() for page in pages)
    assert 'href="?offset=1150"' in earlier
    assert "discard/?offsets=1200" in letter
    assert "1300" in topic
    assert not re.search(r"\d,\d{3}", earlier + letter + topic)


def test_names_of_topics_and_groups_stay_text(queue: MemoryTransport) -> None:
    queue.create_topic("<b>orders", 1)
    queue.join("<i>'billing&", "<b>orders", "one", 60)
    queue.create_topic("dead.<i>", 1)
    queue.send("dead.<i>", {0: [b"<u>"]})
    client = client_of("change_topic", "view_payload")
    listed = client.get(LIST)
    urls = {row["topic"]: row["url"] for row in listed.context["rows"]}
    pages = [listed, client.get(urls["<b>orders"])]
    base = urls["<b>orders"].removesuffix("change/")
    query = urlencode({"group": "<i>'billing&"})
    assert query in pages[1].content.decode()
    form = client.get(f"{base}operate/set-offset/?{query}")
    assert form.context["form"]["group"].value() == "<i>'billing&"
    pages += [form, client.post(f"{base}operate/set-offset/", {"group": "<i>'billing&", "place": "first"})]
    base = urls["dead.<i>"].removesuffix("change/")
    pages += [client.get(f"{base}letters/"), client.get(f"{base}messages/0/"), client.get(f"{base}messages/0/0/")]
    pages.append(client.post(f"{base}operate/discard/", {}))
    for page in pages:
        assert page.status_code == 200
        assert not {"<b>", "<i>", "<u>"} & set(re.findall("<[biu]>", page.content.decode()))


OPERATION_PAGES = (
    "add-queues",
    "show",
    "set-offset",
    "delete-group",
    "delete-topic",
    "delete-queue",
    "pause",
    "retention",
    "requeue",
    "discard",
)


@pytest.mark.parametrize("name", OPERATION_PAGES)
def test_whoever_may_only_view_changes_nothing(queue: MemoryTransport, name: str) -> None:
    client = client_of("view_topic", "view_payload")
    topic = "dead.billing" if name in ("requeue", "discard") else "orders"
    values = {"queues": "9", "unordered": "on", "queue": "0", "consumers": "hide", "group": "billing", "place": "first"}
    for method in (client.get, client.post):
        response = method(
            f"{LIST}{topic}/operate/{name}/",
            {**values, "living": "on", "force": "on", "paused": "yes", "seconds": "9", CONFIRMED: "yes"},
        )
        assert response.status_code == 403
    assert queue.queue_count("orders") == 2
    assert queue.queues("orders")[0].to_consumers
    assert queue.committed("billing", "orders")[0] == 2
    assert len(list(dead_letters(queue, "billing"))) == 2
    assert queue.paused_groups("orders") == []
    assert queue.retention("orders") is None


@pytest.mark.parametrize("name", OPERATION_PAGES)
def test_a_post_from_elsewhere_changes_nothing(queue: MemoryTransport, name: str) -> None:
    client = client_of("change_topic", checks=True)
    assert client.post(f"{LIST}dead.billing/operate/{name}/", {CONFIRMED: "yes"}).status_code == 403
    assert len(list(dead_letters(queue, "billing"))) == 2


def test_who_may_not_view_sees_nothing_of_the_queue(queue: MemoryTransport, client: Client) -> None:
    pages = ["", "orders/change/", "dead.billing/letters/", "orders/messages/0/", "orders/messages/0/0/"]
    stranger = client_of("view_payload")
    assert {stranger.get(LIST + page).status_code for page in pages} == {403}
    assert "topic" not in stranger.get("/admin/").content.decode().lower()
    assert {client.get(LIST + page).status_code for page in pages} == {302}, "to the login"


def test_bodies_need_a_permission_of_their_own(queue: MemoryTransport) -> None:
    client = client_of("change_topic")
    assert client.get(f"{LIST}dead.billing/messages/0/0/").status_code == 403
    assert client.get(f"{LIST}orders/messages/0/").status_code == 403
    listed = client.get(f"{LIST}dead.billing/letters/").content.decode()
    assert "messages/0" not in listed
    assert "ValueError" in listed
    assert "alert(1)" not in listed, "an error may quote the message"


@pytest.mark.parametrize(
    "page",
    [
        *("nowhere/change/", "orders/letters/", "orders/operate/burn/", "orders/messages/9/", "orders/messages/0/9/"),
        *(
            "orders/messages/-1/",
            f"orders/messages/0/{10**40}/",
            "orders/messages/0/?offset=x",
            "orders/messages/0/?at=soon",
            "dead.nobody/letters/",
        ),
        *("nowhere/operate/requeue/", "'%20OR%201=1--/change/", "%00/change/", f"{quote(SCRIPT, safe='')}/change/"),
    ],
)
def test_what_is_not_there_is_not_found(queue: MemoryTransport, page: str) -> None:
    response = client_of("change_topic", "view_payload").get(LIST + page)
    assert response.status_code == 404
    assert SCRIPT not in response.content.decode()


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("set-offset", {"group": "nobody", "place": "first"}, "not one of the available choices"),
        ("set-offset", {"group": "billing", "place": "offset"}, "name the offset"),
        ("set-offset", {"group": "billing", "place": "offset", "offset": "9" * 30}, "less than or equal"),
        ("set-offset", {"group": "billing", "place": "time", "time": "yesterday"}, "valid date/time"),
        ("set-offset", {"group": "billing", "place": "first", "queue": "7"}, "not one of the available choices"),
        ("show", {"queue": "0"}, "say what producers or consumers shall see"),
        ("add-queues", {"queues": "1e9"}, "whole number"),
        ("discard", {"offsets": f"1, {SCRIPT}"}, "offsets must be numbers"),
        ("discard", {"offsets": "17"}, "no dead letter at 17"),
    ],
)
def test_what_makes_no_sense_is_said_on_the_form(
    queue: MemoryTransport, name: str, values: dict[str, str], error: str
) -> None:
    topic = "dead.billing" if name == "discard" else "orders"
    response = client_of("change_topic").post(f"{LIST}{topic}/operate/{name}/", {**values, CONFIRMED: "yes"})
    assert response.status_code == 200
    assert error in response.content.decode()
    assert SCRIPT not in response.content.decode()
    assert not LogEntry.objects.exists()


@override_settings(ENODE={"QUEUE": {"LOCATION": "tcp://127.0.0.1:1"}})
@pytest.mark.parametrize("page", ["", "orders/change/", "orders/operate/add-queues/"])
def test_a_queue_that_cannot_be_reached_is_said_with_what_to_do(page: str) -> None:
    response = client_of("change_topic").get(LIST + page)
    assert response.status_code == 503
    assert "start it with manage.py runbroker" in response.content.decode()
