"""Pages of topics, messages and dead letters. `TopicAdmin` imports this module at the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from enode_django.admin.broker_table import lines_of
from enode_django.admin.databases import shards, within
from enode_django.admin.linking import SUBSCRIBERS, group_anchor, has_pages, may_open, subscriber_url
from enode_django.admin.new_commands import cause_in, new_command
from enode_django.admin.operating import operate
from enode_django.admin.queue_operations import MOST_OFFSET, OPERATIONS
from enode_django.admin.readable import origin_of, readable
from enode_django.admin.showing import type_of_error
from enode_django.conf import conf
from enode_django.equeue import administration, dead_letters
from enode_django.equeue.dead_letters import DeadLetter
from enode_django.equeue.retrying import dead_letter_topic, group_of_letters
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.exceptions import EnodeError, UnknownTopic
from enode_django.models import DeadLetter as DeadLetters
from enode_django.models import Topic
from enode_django.runtime import make_transport

if TYPE_CHECKING:
    from enode_django.admin.topics import TopicAdmin

LETTERS = 100
MESSAGES = 50
STRANGE = "not written by a consumer"
LIST = "admin:enode_django_topic_changelist"
PAGE = "admin:enode_django_topic_change"

View = Callable[..., HttpResponse]


def _with_queue(view: View) -> View:
    """Call a view with a transport, and with the topic of the address if it has one. Raises `PermissionDenied`
    for users who may not view topics, and `Http404` for an unknown topic. Other errors of the queue become a page with
    status 503."""

    @wraps(view)
    def seen(admin: TopicAdmin, request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
        if not admin.has_view_permission(request):  # a project may call it for a page of its own
            raise PermissionDenied
        if "object_id" in named:
            named["topic"] = unquote(named.pop("object_id"))
        try:
            with closing(make_transport()) as transport:
                # Templates may still ask the transport, so they are rendered before it is closed.
                response = view(admin, request, transport, *arguments, **named)
                return response.render() if isinstance(response, TemplateResponse) else response
        except UnknownTopic as error:
            raise Http404(str(error)) from error
        except (EnodeError, ImportError) as error:
            return admin.page(request, "problem", "The queue", status=503, problem=str(error))

    return seen


@_with_queue
def topics_page(
    admin: TopicAdmin, request: HttpRequest, transport: Transport, extra_context: Any = None
) -> HttpResponse:
    rows = [_row(info, transport) for info in administration.list_topics(transport)]
    letters = list(_letter_counts(transport))
    return admin.page(request, "topics", "Topics and queues", rows=rows, letters=letters, queue=_described(transport))


@_with_queue
def topic_page(admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str) -> HttpResponse:
    (info,) = administration.list_topics(transport, [topic])
    return admin.page(
        request,
        "topic",
        topic,
        topic=topic,
        crumbs=_crumbs(),
        queues=sorted(info.queues.items()),
        stored=info.messages,
        groups=[_group(group, request) for group in administration.list_groups(transport, [topic])],
        producers=administration.list_producers(transport, [topic]),
        has_letters=group_of_letters(topic) is not None,
        retention=administration.retention(transport, topic),
    )


@_with_queue
def operation_page(
    admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str, name: str
) -> HttpResponse:
    if name not in OPERATIONS:
        raise Http404(f"there is no operation {name!r}")
    transport.queue_count(topic)
    page = {"requeue": "admin:enode_django_topic_letters", "discard": "admin:enode_django_topic_letters"}.get(
        name, PAGE
    )
    back = reverse(LIST) if name == "delete-topic" else reverse(page, args=[quote(topic)])
    return operate(
        admin,
        request,
        lambda data: OPERATIONS[name](transport, topic, data, initial=request.GET.dict()),
        log=lambda _, done: admin.done(request, Topic(name=topic), name, done),
        log_failure=lambda _, error: admin.failed(request, Topic(name=topic), name, error),
        back=lambda _: back,
        crumbs=_crumbs(topic),
    )


@_with_queue
def letters_page(admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str) -> HttpResponse:
    transport.queue_count(topic)
    group = group_of_letters(topic)
    if group is None:
        raise Http404(f"topic {topic!r} holds no dead letters")
    found = dead_letters.dead_letters(transport, group)
    letters = [_letter(letter) for letter in islice(found, LETTERS + 1)]
    return admin.page(
        request,
        "letters",
        f"Dead letters of {group}",
        topic=topic,
        crumbs=_crumbs(topic),
        letters=letters[:LETTERS],
        more=len(letters) > LETTERS,
    )


@_with_queue
def messages_page(
    admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str, queue: str
) -> HttpResponse:
    number = _natural(queue)
    given = request.GET.get("offset", "")
    offset = _natural(given) if given else None
    time = _given_time(request.GET.get("at", "")) if offset is None else None
    peeked = _peeked(transport, topic, number, offset, MESSAGES, at=time)
    origins = [origin_of(one.body) for one in peeked]
    return admin.page(
        request,
        "messages",
        f"Queue {number}",
        topic=topic,
        queue=number,
        crumbs=_crumbs(topic),
        at=request.GET.get("at", ""),
        messages_found=[
            {"offset": one.offset, "size": len(one.body), "content": readable(one.body), "origin": origin}
            for one, origin in zip(peeked, origins, strict=True)
        ],
        has_times=any(origin.made_at for origin in origins),
        earlier=max(0, peeked[0].offset - MESSAGES) if peeked and peeked[0].offset else None,
        later=peeked[-1].offset + 1 if peeked else None,
    )


@_with_queue
def message_page(
    admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str, queue: str, offset: str
) -> HttpResponse:
    found = _message(transport, topic, queue, offset)
    return admin.page(
        request,
        "message",
        f"Offset {found.offset}",
        topic=topic,
        queue=queue,
        offset=found.offset,
        size=len(found.body),
        content=readable(found.body),
        origin=origin_of(found.body),
        has_letters=group_of_letters(topic) is not None,
        holds_command=cause_in(found.body) is not None,
        crumbs=_crumbs(topic),
    )


@_with_queue
def command_page(
    admin: TopicAdmin, request: HttpRequest, transport: Transport, topic: str, queue: str, offset: str
) -> HttpResponse:
    """Prepare and send a new command like the one in a message."""
    cause = cause_in(_message(transport, topic, queue, offset).body)
    if cause is None:
        raise Http404("the message holds no command")
    back = reverse("admin:enode_django_topic_message", args=[quote(topic), queue, offset])
    crumbs = [*_crumbs(topic), (back, f"Offset {offset}")]
    return new_command(admin, request, Topic(name=topic), cause, back=back, crumbs=crumbs)


def _letter_counts(transport: Transport) -> Iterator[tuple[str, str, int | None, str]]:
    """Yield a tuple for each consumer group with dead letters: ``commands`` or ``messages``, the name of the group, the
    number of its letters, and the URL of their list. The number is None if their database is away."""
    commands = reverse("admin:enode_django_deadletter_changelist") if has_pages("deadletter") else ""
    for alias in conf().EVENT_STORE.tables_in:
        many = _letters_in(alias)
        if many != 0:
            yield "commands", conf().COMMANDS.CONSUMER_GROUP, many, commands and within(alias, commands, shards)
    for group in dead_letters.groups_with_dead_letters(transport):
        if many := sum(1 for _ in dead_letters.dead_letters(transport, group)):
            topic = quote(dead_letter_topic(group))
            yield "messages", group, many, reverse("admin:enode_django_topic_letters", args=[topic])


def _letters_in(alias: str) -> int | None:
    try:
        return DeadLetters.objects.using(alias).count()
    except (OperationalError, InterfaceError):  # the queue is shown all the same
        return None


def _group(info: administration.GroupInfo, request: HttpRequest) -> Mapping[str, Any]:
    """Return what the page shows of a group. ``url`` is the subscriber's row on the page of subscribers; empty if the
    group is not a subscriber's, or the user may not see that page."""
    names = {key_of(one): one.name for one in subscribers.all()}
    url = subscriber_url(names[info.group]) if info.group in names and may_open(request, SUBSCRIBERS) else ""
    unowned = sum(share.owner is None for share in info.shares)
    return {**info._asdict(), "unowned": unowned, "url": url, "anchor": group_anchor(info.group)}


def _row(info: administration.TopicInfo, transport: Transport) -> Mapping[str, Any]:
    """Return what the list shows of a topic, with its groups as (name, number of members, backlog)."""
    return {
        "topic": info.topic,
        "url": reverse(PAGE, args=[quote(info.topic)]),
        "queues": len(info.queues),
        "hidden": sum(not (state.to_producers and state.to_consumers) for state in info.queues.values()),
        "messages": info.messages,
        "producers": len(transport.producers(info.topic)),
        "groups": [
            (group.group, len(group.members), group.backlog)
            for group in administration.list_groups(transport, [info.topic])
        ],
    }


def _letter(letter: DeadLetter) -> Mapping[str, Any]:
    """Return what the page shows of a dead letter: not its body. ``error`` may quote it, ``error_type`` does not."""
    failed = letter.failed
    return {
        "offset": letter.offset,
        "message": failed.message if failed else None,
        "error": failed.error if failed else STRANGE,
        "error_type": type_of_error(failed.error) if failed else STRANGE,
        "failed_at": _moment(failed.failed_at) if failed else None,
        "size": len(letter.body),
    }


def _described(transport: Transport) -> Mapping[str, Any]:
    shown: dict[str, Any] = {"driver": type(transport).__name__}
    if isinstance(transport, BrokerTransport):  # other locations may contain a password
        shown["location"] = transport.location
        shown["figures"] = lines_of(administration.broker_figures(transport))
    return shown


def _crumbs(topic: str = "") -> list[tuple[str, str]]:
    above = [(reverse(LIST), "Topics and queues")]
    return [*above, (reverse(PAGE, args=[quote(topic)]), topic)] if topic else above


def _natural(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MOST_OFFSET:
        return int(text)
    raise Http404(f"{text!r} is not a number from 0 on")


def _message(transport: Transport, topic: str, queue: str, offset: str) -> administration.PeekedMessage:
    at = _natural(offset)
    for found in _peeked(transport, topic, _natural(queue), at, 1):
        if found.offset == at:
            return found
    raise Http404(f"queue {queue} of topic {topic!r} has no message at {at}")


def _peeked(
    transport: Transport, topic: str, queue: int, offset: int | None, limit: int, *, at: datetime | None = None
) -> list[administration.PeekedMessage]:
    if queue >= transport.queue_count(topic):
        raise Http404(f"topic {topic!r} has no queue {queue}")
    return administration.peek(transport, topic, queue, offset, limit, at=at)


def _given_time(text: str) -> datetime | None:
    """Parse the value of a ``datetime-local`` field, in the time zone of the site unless it names another. Return None
    for an empty text. Raises `Http404` for any other text."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Http404(f"{text!r} is not a time") from error
    return moment if moment.tzinfo else timezone.make_aware(moment)


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
