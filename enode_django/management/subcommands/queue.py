"""``manage.py enode queue``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from math import nan
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from enode_django.equeue.dead_letters import REQUEUE_GROUP
from enode_django.equeue.messages import Start
from enode_django.equeue.transport import LONGEST_AGE, Transport
from enode_django.exceptions import EnodeError, QueueBacklog, UnknownTopic
from enode_django.management.arguments import above_0, from_0
from enode_django.management.auditing import add_reason, audited
from enode_django.management.equeue_actions import ACTIONS, check
from enode_django.management.output import PrintableCommand
from enode_django.management.tables import Row, write_json, write_lines, write_table
from enode_django.operating.actions import GROUP, TOPIC
from enode_django.operating.dead_letters import types_of_letters
from enode_django.runtime import make_transport

CHECK = "check"
NOTHING = {
    "topics": "no topics",
    "producers": "no process has sent anything lately",
    "groups": "no groups",
    "offsets": "the group has nothing in these topics",
    "mend": "no foreign entries",
    "peek": "no messages there",
    "dead-letters": "no dead letters",
    "requeue": "nothing to send again",
    "discard": "nothing to discard",
    "delete-group": "no topic has that group",
}
ASKS = {
    "set-offset": "group {group} goes on from {to} in {topic}; it may handle messages again, or leave some out",
    "delete-group": "group {group} is deleted, with its offsets; with the last topic go its retries and dead letters",
    "delete-topic": "topic {topic} is deleted for good, with its messages and groups",
    "delete-queue": "the messages of queue {queue} of topic {topic} are deleted for good; its number stays, hidden",
    "discard": "dead letters of group {group} are deleted for good",
    "mend": "entries that other programs have written into the queues are deleted",
}

CHANGES = frozenset(
    {
        *("create", "add-queues", "retention", "delete-topic", "delete-queue", "set-offset", "hide", "show", "mend"),
        *("requeue", "discard", "pause", "resume", "delete-group", "backup"),
    }
)
"""The actions that change something, and are stored in the audit trail."""
SAID = ("topic", "topics", "queue", "queues", "group", "to", "to_topic", "offsets", "all", "type", "error", "seconds")
"""The options that become the details of an action in the audit trail."""

REQUEUE_EXPLAINED = (
    f"{REQUEUE_GROUP}: the group that sends dead letters again; its backlog begins with the first unsent letter"
)


class Command(PrintableCommand):
    help = "Shows and changes topics, consumer groups and messages of the queue."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        _add_topic_actions(actions)
        _add_group_actions(actions)
        _add_message_actions(actions)
        _add_directory_actions(actions)
        for name in (*ACTIONS, CHECK):
            actions.choices[name].add_argument("--json", action="store_true", help="one JSON object a line")
            if name in ASKS:
                actions.choices[name].add_argument("--yes", action="store_true", help="do not ask")
            if name in CHANGES:
                add_reason(actions.choices[name])

    def handle(self, *, action: str, **options: Any) -> None:
        if action in ("requeue", "discard"):
            some = bool(options["offsets"] or options["type"] or options["error"])
            if some == options["all"]:
                raise CommandError(
                    "name letters, as manage.py enode queue dead-letters shows them, choose some by --type or --error, "
                    "or say --all"
                )
        if action in ASKS and not options["yes"]:
            self._ask(action, options)
        if action == CHECK:
            self._check(options)
            return
        with _errors_shown(action, options.get("group")), closing(make_transport()) as transport:
            rows = self._rows(transport, action, options)
            if options["json"]:
                write_json(self.stdout, rows)
            elif action == "tail":
                write_lines(self.stdout, rows)
            else:
                self._show(action, list(rows), options.get("type"))

    def _rows(self, transport: Transport, action: str, options: Mapping[str, Any]) -> Iterable[Row]:
        if action not in CHANGES:
            return ACTIONS[action](transport, options)
        given = {name: value for name, value in options.items() if name in SAID and value not in (None, False, [], "")}
        object_type, id = (GROUP, options["group"]) if "group" in options else (TOPIC, options.get("topic") or "*")
        with audited(action, object_type, id, reason=options["reason"]) as details:
            details += [f"{name} {value.value if isinstance(value, Start) else value}" for name, value in given.items()]
            return list(ACTIONS[action](transport, options))

    def _check(self, options: Mapping[str, Any]) -> None:
        with _errors_shown(CHECK, None):
            rows, is_sound = check(options)
        (write_json if options["json"] else write_table)(self.stdout, rows)
        if not is_sound:
            raise CommandError("the directory is damaged: a broker that starts there skips what it cannot read")

    def _show(self, action: str, rows: Sequence[Row], type: str | None) -> None:
        write_table(self.stdout, rows)
        if not rows:
            others = type and types_of_letters()
            self.stdout.write(NOTHING.get(action, "nothing") + (f"; there are letters of {others}" if others else ""))
        if action == "groups" and any(row["group"] == REQUEUE_GROUP for row in rows):
            self.stdout.write(REQUEUE_EXPLAINED)

    def _ask(self, action: str, options: Mapping[str, Any]) -> None:
        shown = {name: value.value if isinstance(value, Start) else value for name, value in options.items()}
        try:
            answer = input(f"{ASKS[action].format(**shown)}. Type yes to go on: ")
        except EOFError:
            raise CommandError("there is no input to confirm this; say --yes") from None
        if answer.strip().lower() != "yes":
            raise CommandError("nothing was changed")


@contextmanager
def _errors_shown(action: str, group: str | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if action != "tail":  # whose regular end this is
            raise
    except UnknownTopic as error:
        never = action in ("dead-letters", "requeue", "discard") and f"group {group!r} never had a dead letter"
        raise CommandError(never or str(error)) from error
    except QueueBacklog as error:
        raise CommandError(f"{error}: --unordered") from error
    except (EnodeError, DatabaseError, ValueError) as error:
        raise CommandError(str(error)) from error


def _add_topic_actions(actions: Any) -> None:
    listing = actions.add_parser("topics", help="show topics and their queues")
    sending = actions.add_parser("producers", help="show the processes that have sent to a topic lately")
    actions.add_parser("broker", help="show figures of the broker")
    mending = actions.add_parser("mend", help="delete entries that other programs have written into queues on Redis")
    creating = actions.add_parser("create", help="create a topic")
    retaining = actions.add_parser("retention", help="show or set how long a topic keeps consumed messages")
    deleting = actions.add_parser("delete-topic", help="delete a topic with its messages and groups")
    emptying = actions.add_parser("delete-queue", help="delete the messages of a hidden queue")
    adding = actions.add_parser("add-queues", help="give a topic more queues")
    hiding = actions.add_parser("hide", help="hide a queue from producers and consumers")
    showing = actions.add_parser("show", help="let producers and consumers see a queue again")
    for action in (listing, sending, mending):
        action.add_argument("topics", nargs="*", metavar="topic")
    for action in (creating, retaining, deleting, emptying, adding, hiding, showing):
        action.add_argument("topic")
    for action in (emptying, hiding, showing):
        action.add_argument("queue", type=from_0)
    creating.add_argument("--queues", type=above_0, help="the number of queues (default: as the settings say)")
    retaining.add_argument("seconds", nargs="?", type=_age, help="or 'default': as long as other topics")
    deleting.add_argument("--force", action="store_true", help="also while a group consumes it or has messages left")
    emptying.add_argument("--force", action="store_true", help="also while it has messages left")
    adding.add_argument("queues", type=above_0, help="the new number of queues")
    for action in (hiding, showing):
        action.add_argument("--only", choices=("producers", "consumers"), help="only for these")
    for action in (adding, hiding, showing):
        action.add_argument("--unordered", action="store_true", help="also while messages are unfinished")


def _add_group_actions(actions: Any) -> None:
    listing = actions.add_parser("groups", help="show consumer groups")
    listing.description = f"Shows consumer groups. {REQUEUE_EXPLAINED}."
    offsets = actions.add_parser("offsets", help="show the consume offset and the owner of each queue of a group")
    setting = actions.add_parser("set-offset", help="let a group go on from another place")
    deleting = actions.add_parser("delete-group", help="delete a group and its offsets")
    pausing = actions.add_parser("pause", help="stop a group from consuming until it is resumed")
    resuming = actions.add_parser("resume", help="let a paused group go on")
    for action in (offsets, setting, deleting, pausing, resuming):
        action.add_argument("group")
    for action in (listing, offsets, deleting, pausing, resuming):
        action.add_argument("topics", nargs="*", metavar="topic")
    setting.add_argument("topic")
    setting.add_argument("to", type=_place, help="an offset, 'first', 'last', or a time as in 2030-01-31T12:00")
    setting.add_argument("--queue", type=from_0, action="append", default=[], dest="queues", help="only this queue")
    setting.add_argument("--new-group", action="store_true", help="also for a group that the topic does not have yet")
    deleting.add_argument("--living", action="store_true", help="also while it has members")


def _add_message_actions(actions: Any) -> None:
    peeking = actions.add_parser("peek", help="show messages of a queue; no group is affected")
    tailing = actions.add_parser("tail", help="show messages as they come")
    for action in (peeking, tailing):
        action.add_argument("topic")
    peeking.add_argument("queue", type=from_0)
    first = peeking.add_mutually_exclusive_group()
    first.add_argument("--offset", type=from_0, help="show messages from this offset on; by default the newest")
    first.add_argument("--at", type=_moment, help="show messages stored since a time, such as 2030-01-31T12:00")
    tailing.add_argument("--queue", type=from_0, action="append", default=[], dest="queues", help="only this queue")
    tailing.add_argument("--from-first", action="store_true", help="begin with the oldest message")
    letters = actions.add_parser("dead-letters", help="show the dead letters of a group, or the number of each group's")
    letters.add_argument("group", nargs="?")
    for action, default in ((peeking, 10), (letters, 100)):
        action.add_argument("--limit", type=above_0, default=default, help=f"at most so many ({default})")
    requeuing = actions.add_parser("requeue", help="send dead letters again")
    discarding = actions.add_parser("discard", help="delete dead letters without sending them")
    for action in (requeuing, discarding):
        action.add_argument("group")
        action.add_argument("offsets", nargs="*", metavar="letter", help="a name or offset that dead-letters shows")
        action.add_argument("--all", action="store_true", help="all of the group")
    for action in (letters, requeuing, discarding):
        action.add_argument("--type", help="only letters of this type of command")
        action.add_argument("--error", help="only letters with an error of this class")
    requeuing.add_argument("--to-topic", action="store_true", help="to their own topic, where every group gets them")


def _add_directory_actions(actions: Any) -> None:
    backing = actions.add_parser("backup", help="let the running broker copy its directory")
    backing.add_argument("name", help="the copy is made as backups/NAME in the broker's directory")
    checking = actions.add_parser(CHECK, help="check the directory of a stopped broker, or a backup")
    checking.add_argument("directory", type=Path)


def _age(text: str) -> float:
    """Return the seconds, or -1 for ``default``."""
    try:
        seconds = -1.0 if text == "default" else float(text)
    except ValueError:
        seconds = nan
    if text != "default" and not 0 <= seconds < LONGEST_AGE:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {LONGEST_AGE:.0f}, and not 'default'")
    return seconds


def _place(text: str) -> int | Start | datetime:
    if text in ("first", "last"):
        return Start(text)
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return _moment(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is not an offset, a time, 'first' or 'last'") from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time; write it as 2030-01-31T12:00") from None
    return moment if moment.tzinfo else timezone.make_aware(moment)
