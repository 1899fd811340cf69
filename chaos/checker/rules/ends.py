from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import Appended, Committed, Consumption, Facts, OffsetSet, Send
from chaos.checker.replay.bank import Replay
from chaos.checker.replay.follow_ups import TYPES as FOLLOW_UPS

_CREATING = {"bank.OpenAccount", "bank.StartTransfer", "notes.CreateNote"}


def every_command_ends(facts: Facts) -> Iterator[str]:
    """Each command that the queue acknowledged is stored, answered or a dead letter, unless it may have left no trace;
    and the command queues are consumed up to their ends."""
    answered = facts.answers_by_command
    for send in facts.sends:
        key = (send.command_id, send.aggregate_root_id)
        ended = key in facts.rows_by_key or key in facts.dead or send.command_id in answered
        if send.command_id in facts.acknowledged and not ended and not _may_leave_nothing(facts, send):
            yield f"command {send.command_id} ({send.type_name} of {send.aggregate_root_id}) was sent and has no end"
    yield from _left_over(facts)


def _may_leave_nothing(facts: Facts, send: Send) -> bool:
    """Return True if the command may have changed nothing, or failed without a stored refusal."""
    id, state = send.aggregate_root_id, facts.replay
    exists = id in facts.histories
    if send.type_name in _CREATING:
        return exists
    return not exists or send.type_name in FOLLOW_UPS - {"bank.CancelTransfer"} or _was_done_before(state, send)


def _was_done_before(state: Replay, send: Send) -> bool:
    id = send.aggregate_root_id
    match send.type_name:
        case "bank.CloseAccount":
            return id in state.accounts and state.accounts[id].closed
        case "bank.CancelTransfer":
            return id in state.transfers and state.transfers[id].status == "cancelled"
        case "notes.DeleteNote":
            return id in state.notes and state.notes[id].deleted
        case "notes.ChangeTitle":
            return id in state.notes and send.fields.get("title", "").strip() in state.notes[id].titles
    return False


def _left_over(facts: Facts) -> Iterator[str]:
    ends: dict[int, int] = {}
    committed: dict[Consumption, int] = {}
    for record in facts.log:
        if isinstance(record, Appended) and record.topic == facts.command_topic:
            ends[record.queue] = record.first_offset + record.count
        elif isinstance(record, Committed):
            committed[record.consumption] = max(record.offset, committed.get(record.consumption, 0))
        elif isinstance(record, OffsetSet):
            committed.pop(record.consumption, None)
    for sample in facts.samples:
        committed[sample.consumption] = max(sample.committed, committed.get(sample.consumption, 0))
    for queue, end in sorted(ends.items()):
        reached = committed.get((facts.group, facts.command_topic, queue), 0)
        if reached < end:
            yield f"queue {queue} of {facts.command_topic} ends at {end}, and is consumed up to {reached}"
