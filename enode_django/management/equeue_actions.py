"""The actions of ``manage.py enode queue`` by name. Each turns parsed options into rows to show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

from django.db import DatabaseError

from enode_django.conf import conf
from enode_django.equeue import administration, dead_letters
from enode_django.equeue.administration import PeekedMessage, QueueShare
from enode_django.equeue.broker.check import check_directory
from enode_django.equeue.messages import Start
from enode_django.equeue.transport import Transport
from enode_django.exceptions import QueueError
from enode_django.jobs.error_texts import in_one_line
from enode_django.management.tables import Row
from enode_django.operating import dead_letters as command_letters

Options = Mapping[str, Any]
TAIL_WAIT = 1.0


def topics(transport: Transport, options: Options) -> Iterator[Row]:
    for info in administration.list_topics(transport, options["topics"]):
        for queue, state in sorted(info.queues.items()):
            yield {
                "topic": info.topic,
                "queue": queue,
                "first": state.first,
                "end": state.end,
                "messages": state.end - state.first,
                "producers see it": state.to_producers,
                "consumers see it": state.to_consumers,
            }


def _topic(transport: Transport, options: Options) -> Iterator[Row]:
    return topics(transport, {"topics": [options["topic"]]})


def create(transport: Transport, options: Options) -> Iterable[Row]:
    queues = options["queues"] or conf().QUEUE.QUEUES_PER_TOPIC
    administration.create_topic(transport, options["topic"], queues)
    return _topic(transport, options)


def add_queues(transport: Transport, options: Options) -> Iterable[Row]:
    topic, wanted = options["topic"], options["queues"]
    has = transport.add_queues(topic, wanted, unordered=options["unordered"])
    if has > wanted:
        raise QueueError(f"topic {topic!r} has {has} queues, and they are never taken away; hide those above {wanted}")
    return _topic(transport, options)


def let_see(transport: Transport, options: Options, *, seen: bool) -> Iterable[Row]:
    transport.show(
        options["topic"],
        options["queue"],
        to_producers=None if options["only"] == "consumers" else seen,
        to_consumers=None if options["only"] == "producers" else seen,
        unordered=options["unordered"],
    )
    return _topic(transport, options)


def retention(transport: Transport, options: Options) -> Iterable[Row]:
    topic = options["topic"]
    if options["seconds"] is not None:
        administration.set_retention(transport, topic, None if options["seconds"] < 0 else options["seconds"])
    return [{"topic": topic, "seconds": administration.retention(transport, topic)}]


def delete_topic(transport: Transport, options: Options) -> Iterator[Row]:
    return (
        {"topic": topic} for topic in administration.delete_topic(transport, options["topic"], force=options["force"])
    )


def delete_queue(transport: Transport, options: Options) -> Iterable[Row]:
    administration.delete_queue(transport, options["topic"], options["queue"], force=options["force"])
    return _topic(transport, options)


def groups(transport: Transport, options: Options) -> Iterator[Row]:
    for info in administration.list_groups(transport, options["topics"]):
        yield {
            "topic": info.topic,
            "group": info.group,
            "division": info.generation,
            "members": list(info.members),
            "backlog": info.backlog,
            "counts": info.counts,
            "paused": info.paused,
        }


def producers(transport: Transport, options: Options) -> Iterator[Row]:
    for info in administration.list_producers(transport, options["topics"]):
        yield {"topic": info.topic, "producer": info.producer, "seconds ago": round(info.seconds, 1)}


def broker(transport: Transport, options: Options) -> Iterator[Row]:
    figures = administration.broker_figures(transport)
    return ({"figure": name.replace("_", " "), "value": value} for name, value in figures.items())


def backup(transport: Transport, options: Options) -> Iterable[Row]:
    made = administration.back_up(transport, options["name"])
    return [{name.replace("_", " "): value for name, value in made.items()}]


def mend(transport: Transport, options: Options) -> Iterator[Row]:
    for topic, deleted in administration.mend(transport, options["topics"]).items():
        yield from ({"topic": topic, "queue": queue, "deleted": number} for queue, number in deleted.items() if number)


def offsets(transport: Transport, options: Options) -> Iterator[Row]:
    infos = administration.list_groups(transport, options["topics"], group=options["group"])
    return (_share(share) for info in infos for share in info.shares)


def _share(share: QueueShare) -> Row:
    return {
        "topic": share.topic,
        "queue": share.queue,
        "committed": share.committed,
        "end": share.end,
        "backlog": share.backlog,
        "owner": share.owner,
        "seconds left": round(share.seconds, 1) if share.owner else None,
        "assigned to": share.shall_own,
    }


def set_offset(transport: Transport, options: Options) -> Iterator[Row]:
    group, topic, to, queues = (options[name] for name in ("group", "topic", "to", "queues"))
    moves = administration.set_offsets(transport, group, topic, to, queues, new_group=options["new_group"])
    return ({"topic": m.topic, "queue": m.queue, "before": m.before, "after": m.after} for m in moves)


def delete_group(transport: Transport, options: Options) -> Iterator[Row]:
    deleted = administration.delete_group(transport, options["group"], options["topics"], living=options["living"])
    return ({"topic": topic, "group": options["group"]} for topic in deleted)


def pause(transport: Transport, options: Options, *, paused: bool) -> Iterator[Row]:
    topics = administration.pause_group(transport, options["group"], options["topics"], paused=paused)
    return ({"topic": topic, "group": options["group"], "paused": paused} for topic in topics)


def peek(transport: Transport, options: Options) -> Iterator[Row]:
    topic, queue, offset, limit = (options[name] for name in ("topic", "queue", "offset", "limit"))
    return map(_message, administration.peek(transport, topic, queue, offset, limit, at=options["at"]))


def tail(transport: Transport, options: Options) -> Iterator[Row]:
    """Yield messages as they come, without end."""
    start = Start.FIRST if options["from_first"] else Start.LAST
    for message in administration.tail(transport, options["topic"], options["queues"], start, wait=TAIL_WAIT):
        if message is not None:
            yield _message(message)


def _message(message: PeekedMessage) -> Row:
    return {"queue": message.queue, "offset": message.offset, "size": len(message.body), "body": message.body}


def list_dead_letters(transport: Transport, options: Options) -> Iterator[Row]:
    if _is_of_commands(options):
        yield from islice(_command_letters(options), options["limit"])
        return
    if options["group"] is None:
        if many := _count_of_commands():
            yield {"group": conf().COMMANDS.CONSUMER_GROUP, "dead letters": many}
        for group in dead_letters.groups_with_dead_letters(transport):
            found = dead_letters.letters_by_error(transport, group)
            yield {"group": group, "dead letters": sum(one.many for one in found.values())}
        return
    for letter in islice(dead_letters.dead_letters(transport, options["group"]), options["limit"]):
        failed = letter.failed
        yield {
            "offset": letter.offset,
            "topic": failed and failed.message.topic,
            "queue": failed and failed.message.queue,
            "message": failed and failed.message.offset,
            "attempts": failed and failed.message.attempt,
            "failed at": failed and datetime.fromtimestamp(failed.failed_at, UTC),
            "error": failed and failed.error,
            "body": letter.body,
        }


def _count_of_commands() -> int | str:
    """Return the number of dead letters of commands, or a text if a database is away: other groups are shown without
    it."""
    try:
        return sum(found.count() for _, found in command_letters.Choice().letters())
    except DatabaseError as error:
        return f"not known: {str(error).strip().partition(chr(10))[0]}"


def _is_of_commands(options: Options) -> bool:
    """Return True for the group of the workers, whose letters are rows of the event store's databases. Raises
    `QueueError` if another group is given with options for these letters."""
    if options["group"] == conf().COMMANDS.CONSUMER_GROUP:
        return True
    if options["type"] or options["error"]:
        raise QueueError(
            f"--type and --error choose among dead letters of the group {conf().COMMANDS.CONSUMER_GROUP!r} only"
        )
    return False


def _choice(options: Options) -> command_letters.Choice:
    return command_letters.Choice(options.get("offsets", ()), options["type"] or "", options["error"] or "")


def _command_letters(options: Options) -> Iterator[Row]:
    for _, found in _choice(options).letters():
        for letter in found[: options["limit"]]:
            yield {
                "letter": command_letters.name_of(letter),
                "type": letter.command_type,
                "aggregate": letter.aggregate_root_id,
                "attempts": letter.attempts,
                "failed at": letter.last_failed_at,
                "stored": letter.is_stored,
                "error": letter.error_type,
                "text": in_one_line(letter.error),
            }


def _offsets(options: Options) -> list[int] | None:
    wrong = [text for text in options["offsets"] if not (text.isascii() and text.isdecimal())]
    if wrong:
        raise QueueError(
            f"{wrong[0]!r} is not a number from 0 on; group {options['group']!r} names its letters by offsets"
        )
    return None if options["all"] else [int(text) for text in options["offsets"]]


def requeue(transport: Transport, options: Options) -> Iterable[Row]:
    if _is_of_commands(options):
        many = command_letters.requeue(transport, _choice(options))
        return [{"group": options["group"], "sent anew": many}] if many else []
    chosen = _offsets(options)
    sent = dead_letters.requeue(transport, options["group"], chosen, to_topic=options["to_topic"])
    return ({"group": options["group"], "offset sent anew": offset} for offset in sent)


def discard(transport: Transport, options: Options) -> Iterable[Row]:
    if _is_of_commands(options):
        many = command_letters.discard(_choice(options))
        return [{"group": options["group"], "discarded": many}] if many else []
    discarded = dead_letters.discard(transport, options["group"], _offsets(options))
    return ({"group": options["group"], "offset discarded": offset} for offset in discarded)


ACTIONS: Mapping[str, Callable[[Transport, Options], Iterable[Row]]] = {
    "topics": topics,
    "create": create,
    "add-queues": add_queues,
    "retention": retention,
    "delete-topic": delete_topic,
    "delete-queue": delete_queue,
    "producers": producers,
    "groups": groups,
    "offsets": offsets,
    "set-offset": set_offset,
    "hide": partial(let_see, seen=False),
    "show": partial(let_see, seen=True),
    "mend": mend,
    "peek": peek,
    "tail": tail,
    "dead-letters": list_dead_letters,
    "requeue": requeue,
    "discard": discard,
    "pause": partial(pause, paused=True),
    "resume": partial(pause, paused=False),
    "delete-group": delete_group,
    "broker": broker,
    "backup": backup,
}


def check(options: Options) -> tuple[list[Row], bool]:
    """Check a broker's directory. Return the findings with a summary, and True if nothing is damaged. Asks no queue."""
    checked = check_directory(options["directory"])
    rows = [{"kind": each.kind, "place": each.place, "finding": each.text} for each in checked.findings]
    read = f"{checked.files} files of {checked.bytes} bytes: {checked.batches} batches with {checked.messages} messages"
    summary = {"kind": "read", "place": str(options["directory"]), "finding": f"{read}, {checked.records} records"}
    return [*rows, summary], checked.is_sound
