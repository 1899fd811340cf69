"""Dead letters of commands: which finished commands get one, its contents, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from enode_django.bus.results import CommandResult, CommandStatus, Crash
from enode_django.commanding.decisions import STORED, Decision, Envelope, Finished
from enode_django.commanding.outcomes import NAMES_OF_SENDERS_ERRORS
from enode_django.concurrency.backoff import Persist
from enode_django.equeue.portions import portions
from enode_django.eventstore.dead_letters import ERROR_MAX, DeadLetter, DeadLetters, column_text, key_of


def crashed_among(finished: Iterable[Finished]) -> list[Finished]:
    """Return the outcomes of commands that an exception ended, senders' mistakes included. Usually there are none."""
    return [one for one in finished if one.result is not None and _is_crash(one.result)]


def _is_crash(result: CommandResult) -> bool:
    return isinstance(result, Crash) or (
        result.status is CommandStatus.FAILED and result.error_type in NAMES_OF_SENDERS_ERRORS
    )


def letters_of(crashed: Iterable[Finished]) -> list[DeadLetter]:
    return [
        _letter(envelope, result)
        for envelope, _, result, _ in crashed
        if isinstance(result, Crash) and is_kept(envelope, result)
    ]


def keep_crashed(dead_letters: DeadLetters, crashed: Sequence[Finished], persist: Persist) -> None:
    """Write the dead letters of commands that an exception ended, in portions, since their messages may be large. Mark
    earlier dead letters of answered commands as answered. Return when all this is durable."""
    for some in portions(letters_of(crashed), lambda letter: len(letter.body) + len(letter.error)):
        persist(partial(dead_letters.keep, some))
    if answered := answered_keys(crashed):
        persist(partial(dead_letters.keep, (), answered))


def answered_keys(crashed: Iterable[Finished]) -> list[str]:
    """Return the keys of commands whose senders are told that they failed. A dead letter from an earlier attempt of
    such a command counts as answered from now on."""
    return [
        key_of(envelope.id, envelope.aggregate_root_id, b"")
        for envelope, _, result, _ in crashed
        if envelope.reply_to and envelope.id and not is_kept(envelope, result)
    ]


def kept_and_answered(finished: Iterable[Finished]) -> tuple[list[Decision], list[Finished]]:
    """Divide the outcomes of commands that were never handled: decisions that become dead letters, and all others."""
    broken, answered = list[Decision](), list[Finished]()
    for one in finished:
        if is_kept(one.envelope, one.result):
            broken.append(Decision(STORED, one.envelope.aggregate_root_id, 0, one.envelope, None, None, one.result))
        else:
            answered.append(one)
    return broken, answered


def is_kept(envelope: Envelope, result: CommandResult | None) -> bool:
    """Return True if a command becomes a dead letter: an exception ended it while nobody waited, or it could not be
    handled at all."""
    return (
        isinstance(result, Crash)
        and envelope.window is not None
        and (not result.is_told or envelope.failed is not None)
    )


def is_withdrawn(entry: Decision) -> bool:
    """Return True if nobody is told the outcome. The same command may then be sent and decided again."""
    envelope, result = entry.envelope, entry.result
    return envelope is not None and isinstance(result, Crash) and not result.is_told and is_kept(envelope, result)


def as_told(envelope: Envelope, result: CommandResult) -> CommandResult:
    """Return the outcome of an earlier copy as that of this one. An outcome that its sender is told is final."""
    if envelope.reply_to and isinstance(result, Crash) and not result.is_told:
        return replace(result, is_told=True)
    return result


def _letter(envelope: Envelope, crash: Crash) -> DeadLetter:
    window = envelope.window
    assert window is not None
    body = envelope.body or b""
    return DeadLetter(
        key_of(envelope.id, envelope.aggregate_root_id, body),
        column_text(envelope.id),
        column_text(envelope.aggregate_root_id),
        column_text(envelope.type_name),
        window.topic,
        window.queue,
        envelope.offset,
        column_text(crash.error_type),
        column_text(crash.traceback or crash.error_message, ERROR_MAX),
        bytes(body),
        crash.is_told,
    )
