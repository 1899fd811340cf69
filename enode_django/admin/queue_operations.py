"""Forms for the operations on topics, queues, groups and dead letters. Each works on one topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from django import forms

from enode_django.admin.operating import Operation
from enode_django.equeue import administration, dead_letters
from enode_django.equeue.messages import Start
from enode_django.equeue.retrying import group_of_letters
from enode_django.equeue.transport import LONGEST_AGE, Transport
from enode_django.exceptions import QueueError
from enode_django.web.form_fields import DateTimeField

MOST_OFFSET = (1 << 63) - 1
MOST_QUEUES = 1 << 16
MOST_COUNTED = 10_000
MOST_NAMED = 20
UNORDERED = "Messages of a key may then overtake each other. Otherwise it is refused while a group has a backlog."


class TopicOperation(Operation):
    def __init__(self, transport: Transport, topic: str, data: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.transport = transport
        self.topic = topic
        self.offer()

    def offer(self) -> None:
        """Fill the choices of the fields from the queue. Blocks."""

    def _choose_from(self, name: str, values: Any, *more: tuple[str, str]) -> None:
        self.let_choose(name, [*more, *((str(value), str(value)) for value in values)])


class GroupOperation(TopicOperation):
    """An operation on one of the topic's groups."""

    group = forms.ChoiceField(label="Group")

    def offer(self) -> None:
        self._choose_from("group", self.transport.groups(self.topic))


class AddQueues(TopicOperation):
    title, button = "Add queues", "Add the queues"

    queues = forms.IntegerField(label="Queues in all", min_value=1, max_value=MOST_QUEUES)
    unordered = forms.BooleanField(label="Also while there is a backlog", required=False, help_text=UNORDERED)

    def consequences(self) -> Iterator[str]:
        has, wanted = self.transport.queue_count(self.topic), self.cleaned_data["queues"]
        if wanted <= has:
            raise QueueError(f"topic {self.topic!r} has {has} queues, and queues are never taken away; give more")
        yield f"Topic {self.topic} has {has} queues, and will have {wanted}. Queues cannot be taken away again."
        yield "From then on, many keys go to other queues than before."
        yield from _about_order(self.cleaned_data["unordered"])

    def perform(self) -> str:
        count = self.transport.add_queues(
            self.topic, self.cleaned_data["queues"], unordered=self.cleaned_data["unordered"]
        )
        return f"topic {self.topic} has {count} queues now"


class ShowQueue(TopicOperation):
    title, button = "Hide or show a queue", "Change who sees it"

    queue = forms.ChoiceField(label="Queue")
    producers = forms.ChoiceField(label="Producers", required=False)
    consumers = forms.ChoiceField(label="Consumers", required=False)
    unordered = forms.BooleanField(label="Also while there is a backlog", required=False, help_text=UNORDERED)

    def offer(self) -> None:
        self._choose_from("queue", self.transport.queues(self.topic))
        for name in ("producers", "consumers"):
            self.let_choose(name, [("", "as it is"), ("hide", "do not see it"), ("show", "see it")])

    def clean(self) -> None:
        if not self.cleaned_data.get("producers") and not self.cleaned_data.get("consumers"):
            raise forms.ValidationError("say what producers or consumers shall see")

    def consequences(self) -> Iterator[str]:
        cleaned = self.cleaned_data
        queue = f"Queue {cleaned['queue']} of topic {self.topic}"
        if cleaned["producers"]:
            what = "gets no more messages" if cleaned["producers"] == "hide" else "gets messages"
            yield f"{queue} {what} by key; many keys go to other queues than before."
            yield from _about_order(cleaned["unordered"])
        if cleaned["consumers"] == "hide":
            yield f"{queue} is given to no consumer: its messages wait until it is shown again."
        elif cleaned["consumers"]:
            yield f"{queue} is given to a member of each group."

    def perform(self) -> str:
        cleaned = self.cleaned_data
        self.transport.show(
            self.topic,
            int(cleaned["queue"]),
            to_producers=_seen(cleaned["producers"]),
            to_consumers=_seen(cleaned["consumers"]),
            unordered=cleaned["unordered"],
        )
        told = [f"{who}: {cleaned[who]}" for who in ("producers", "consumers") if cleaned[who]]
        return f"queue {cleaned['queue']} of topic {self.topic}: {', '.join(told)}"


class SetOffset(GroupOperation):
    title, button = "Set an offset", "Set the offset"

    queue = forms.ChoiceField(label="Queue", required=False)
    place = forms.ChoiceField(
        label="Go on from",
        choices=[("first", "the first message"), ("last", "the end"), ("offset", "an offset"), ("time", "a time")],
    )
    offset = forms.IntegerField(label="Offset", required=False, min_value=0, max_value=MOST_OFFSET)
    time = DateTimeField(label="Time", required=False, help_text="In the time zone of this site.")

    def offer(self) -> None:
        super().offer()
        self._choose_from("queue", self.transport.queues(self.topic), ("", "all queues"))

    def clean(self) -> None:
        place = self.cleaned_data.get("place", "")
        if place in ("offset", "time") and self.cleaned_data.get(place) is None and place not in self.errors:
            self.add_error(place, f"name the {place} to go on from")

    def consequences(self) -> Iterator[str]:
        group = self.cleaned_data["group"]
        for move in administration.plan_offsets(self.transport, group, self.topic, self._to(), self._queues()):
            yield f"Queue {move.queue}: {_moved(move.before or 0, move.after)}"
        yield f"The owners in group {group} lose these queues for a moment, and handle unfinished messages again."

    def perform(self) -> str:
        group = self.cleaned_data["group"]
        moves = administration.set_offsets(self.transport, group, self.topic, self._to(), self._queues())
        told = ", ".join(f"queue {move.queue} from {move.before or 0} to {move.after}" for move in moves)
        return f"offsets of group {group} in topic {self.topic} were set: {told}"

    def _queues(self) -> Sequence[int]:
        return [int(self.cleaned_data["queue"])] if self.cleaned_data["queue"] else []

    def _to(self) -> int | Start | datetime:
        place = self.cleaned_data["place"]
        to: int | datetime = self.cleaned_data[place] if place in ("offset", "time") else 0
        return Start(place) if place in ("first", "last") else to


class DeleteGroup(GroupOperation):
    title, button = "Forget a group", "Forget the group"

    living = forms.BooleanField(label="Also while it has members", required=False, help_text="They join again then.")

    def consequences(self) -> Iterator[str]:
        group = self.cleaned_data["group"]
        (info,) = administration.list_groups(self.transport, [self.topic], group=group)
        yield f"Group {group} is forgotten in topic {self.topic}, with its offsets. It holds back no message then."
        yield f"It has a backlog of {info.backlog} messages and {len(info.members)} members."
        if failures := administration.failure_topics(self.transport, group):
            yield f"If no other topic has the group, these are deleted with all messages: {', '.join(failures)}."

    def perform(self) -> str:
        group = self.cleaned_data["group"]
        administration.delete_group(self.transport, group, [self.topic], living=self.cleaned_data["living"])
        return f"group {group} of topic {self.topic} was forgotten"


class PauseGroup(GroupOperation):
    title, button = "Pause or resume a group", "Pause or resume it"

    paused = forms.ChoiceField(label="It shall", choices=[("yes", "consume nothing"), ("no", "go on")])

    def consequences(self) -> Iterator[str]:
        group = self.cleaned_data["group"]
        if self._pauses:
            yield f"Group {group} consumes nothing of topic {self.topic} until it is resumed, also after restarts."
            yield "Its members finish what they have pulled, and give their queues back. New messages wait."
        else:
            yield f"The members of group {group} get the queues of topic {self.topic} again, and go on."

    def perform(self) -> str:
        group = self.cleaned_data["group"]
        administration.pause_group(self.transport, group, [self.topic], paused=self._pauses)
        return f"group {group} of topic {self.topic} was {'paused' if self._pauses else 'resumed'}"

    @property
    def _pauses(self) -> bool:
        return bool(self.cleaned_data["paused"] == "yes")


class SetRetention(TopicOperation):
    title, button = "Set the retention", "Set it"

    seconds = forms.FloatField(
        label="Seconds",
        required=False,
        min_value=0,
        max_value=LONGEST_AGE - 1,
        help_text="Empty: as long as the settings of the queue say.",
    )

    def consequences(self) -> Iterator[str]:
        seconds = self.cleaned_data["seconds"]
        how_long = "as long as the settings of the queue say" if seconds is None else f"for {seconds:g} seconds"
        yield f"Messages of topic {self.topic} that all groups have consumed are kept {how_long}."

    def perform(self) -> str:
        seconds = self.cleaned_data["seconds"]
        administration.set_retention(self.transport, self.topic, seconds)
        return f"retention of topic {self.topic}: {'the default' if seconds is None else f'{seconds:g} seconds'}"


class DeleteQueue(TopicOperation):
    title, button = "Delete a hidden queue", "Delete the queue"

    queue = forms.ChoiceField(label="Queue")
    force = forms.BooleanField(label="Also while it has messages left", required=False)

    def offer(self) -> None:
        self._choose_from("queue", self.transport.queues(self.topic))

    def consequences(self) -> Iterator[str]:
        queue = self.cleaned_data["queue"]
        state = self.transport.queues(self.topic)[int(queue)]
        yield f"The {state.end - state.first} messages of queue {queue} of topic {self.topic} are deleted for good."
        yield "Its number stays, hidden. If it is shown again, every group goes on where it ended."

    def perform(self) -> str:
        queue = self.cleaned_data["queue"]
        administration.delete_queue(self.transport, self.topic, int(queue), force=self.cleaned_data["force"])
        return f"queue {queue} of topic {self.topic} was deleted"


class DeleteTopic(TopicOperation):
    title, button = "Delete the topic", "Delete the topic"

    force = forms.BooleanField(
        label="Also while it is in use", required=False, help_text="A group consumes it, or has messages left."
    )

    def consequences(self) -> Iterator[str]:
        (info,) = administration.list_topics(self.transport, [self.topic])
        yield f"Topic {self.topic} is deleted for good, with its {info.messages} messages."
        for group in administration.list_groups(self.transport, [self.topic]):
            yield f"Group {group.group} loses its offsets; {group.backlog} messages left, {len(group.members)} members."
        yield "Producers and consumers of it get an error until the topic is created again."
        yield "The retries and dead letters of groups that no other topic has are deleted, too."

    def perform(self) -> str:
        deleted = administration.delete_topic(self.transport, self.topic, force=self.cleaned_data["force"])
        return f"deleted: {', '.join(deleted)}"


class LetterOperation(TopicOperation):
    """An operation on the topic of a group's dead letters."""

    offsets = forms.CharField(
        label="Offsets",
        required=False,
        max_length=2_000,
        help_text="Offsets of dead letters, separated by commas. Empty: all of the group.",
    )
    before = forms.IntegerField(required=False, widget=forms.HiddenInput, min_value=0, max_value=MOST_OFFSET)
    """Letters that come after the form was shown are not meant by *all*."""

    def offer(self) -> None:
        self.initial["before"] = self.transport.end_offsets(self.topic)[0]

    @property
    def group(self) -> str:
        group = group_of_letters(self.topic)
        if group is None:
            raise QueueError(f"topic {self.topic!r} has no dead letters of a group")
        return group

    def clean_offsets(self) -> list[int] | None:
        parts = [part.strip() for part in self.cleaned_data["offsets"].split(",") if part.strip()]
        if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            raise forms.ValidationError("offsets must be numbers, separated by commas")
        return [int(part) for part in parts] or None

    def _which(self) -> str:
        offsets = self.cleaned_data["offsets"]
        if offsets is not None:
            return f"The dead letters of group {self.group} at {', '.join(map(str, offsets))}"
        letters = islice(dead_letters.dead_letters(self.transport, self.group), MOST_COUNTED)
        count = sum(1 for letter in letters if self._before is None or letter.offset < self._before)
        return f"All dead letters of group {self.group} ({count}{' or more' if count == MOST_COUNTED else ''})"

    @property
    def _before(self) -> int | None:
        """Return the offset that all letters must be before; None if letters are named, or the form was not shown."""
        before: int | None = self.cleaned_data["before"]
        return before if self.cleaned_data["offsets"] is None else None


class Requeue(LetterOperation):
    title, button = "Send dead letters again", "Send them again"

    to_topic = forms.BooleanField(
        label="To the topic that they came from",
        required=False,
        help_text="Every group gets them there. Otherwise they go to the retries of their own group.",
    )

    def consequences(self) -> Iterator[str]:
        to_topic = self.cleaned_data["to_topic"]
        where = "the topic that they came from, where every group gets them" if to_topic else "its own retries"
        yield f"{self._which()} are sent to {where}."
        yield "They are handled at least once more, after the messages that are there already."

    def perform(self) -> str:
        cleaned = self.cleaned_data
        sent = dead_letters.requeue(
            self.transport, self.group, cleaned["offsets"], to_topic=cleaned["to_topic"], before=self._before
        )
        return f"{len(sent)} dead letters of group {self.group} were sent again: {_some(sent)}"


class Discard(LetterOperation):
    title, button = "Discard dead letters", "Discard them"

    def consequences(self) -> Iterator[str]:
        yield f"{self._which()} are gone for good, and nobody handles them."

    def perform(self) -> str:
        offsets = self.cleaned_data["offsets"]
        discarded = dead_letters.discard(self.transport, self.group, offsets, before=self._before)
        return f"{len(discarded)} dead letters of group {self.group} were discarded: {_some(discarded)}"


OPERATIONS: Mapping[str, type[TopicOperation]] = {
    "add-queues": AddQueues,
    "show": ShowQueue,
    "set-offset": SetOffset,
    "pause": PauseGroup,
    "retention": SetRetention,
    "delete-group": DeleteGroup,
    "delete-topic": DeleteTopic,
    "delete-queue": DeleteQueue,
    "requeue": Requeue,
    "discard": Discard,
}


def _seen(choice: str) -> bool | None:
    return choice == "show" if choice else None


def _about_order(unordered: bool) -> Iterator[str]:
    if unordered:
        yield "Later messages of a key may overtake those that are not handled yet."
    else:
        yield "It is refused while a group has messages left, so no message overtakes another."


def _moved(before: int, after: int) -> str:
    if after < before:
        return f"goes back from {before} to {after}; {before - after} messages are handled again."
    if after > before:
        return f"goes on from {before} to {after}; {after - before} messages may never be handled."
    return f"stays at {before}."


def _some(offsets: Sequence[int]) -> str:
    shown = ", ".join(map(str, offsets[:MOST_NAMED])) or "none"
    return shown if len(offsets) <= MOST_NAMED else f"{shown} …"
