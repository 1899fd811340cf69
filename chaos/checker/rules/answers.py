"""Comparison of the answers to clients with the stored rows."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.decoding import Refusal, Stream, text_of
from chaos.checker.facts import Answer, Facts, StoredRow
from chaos.checker.rules.texts import same_text


def success_stored(facts: Facts) -> Iterator[str]:
    """Every SUCCESS is stored exactly once, with the answered version and value."""
    for answer in facts.answers:
        if answer.status == "SUCCESS":
            yield from _success(answer, [*facts.rows_by_key.get(answer.key, ())])


def _success(answer: Answer, rows: list[StoredRow]) -> Iterator[str]:
    said = f"command {answer.command_id} of {answer.aggregate_root_id} was answered SUCCESS"
    if len(rows) != 1:
        yield f"{said}, and is stored {len(rows)} times"
        return
    row, contents = rows[0], rows[0].contents
    if row.version is None or isinstance(contents, Refusal):
        yield f"{said}, and is stored as a refusal"
    elif row.version != answer.version:
        yield f"{said} with version {answer.version}, and is stored as version {row.version}"
    elif not same_text(text_of(contents.result), answer.value):
        yield f"{said} with the value {answer.value!r}, and is stored with {text_of(contents.result)!r}"


def failed_not_stored(facts: Facts) -> Iterator[str]:
    """A command answered FAILED or NOTHING_CHANGED is not stored, unless queues were added while commands waited. One
    answered REFUSED is stored as a refusal."""
    for answer in facts.answers:
        rows = facts.rows_by_key.get(answer.key, ())
        if answer.status == "REFUSED":
            yield from _refused(answer, [*rows])
        elif _leaves_no_row(answer) and rows and facts.are_all_answers_final:
            yield f"{_said(answer)}, and is stored as {_place(rows[0])}"


def _leaves_no_row(answer: Answer) -> bool:
    return answer.status not in ("SUCCESS", "REFUSED")


def _place(row: StoredRow) -> str:
    return "a refusal" if row.version is None else f"version {row.version}"


def _refused(answer: Answer, rows: list[StoredRow]) -> Iterator[str]:
    if not rows:
        yield f"{_said(answer)}, and the refusal is not stored"
    for row in rows:
        contents = row.contents
        if isinstance(contents, Stream) or row.version is not None:
            yield f"{_said(answer)}, and is stored as version {row.version}"
        elif contents.type_name != answer.error_type:
            yield f"{_said(answer)}, and is stored as the refusal {contents.type_name}"


def _said(answer: Answer) -> str:
    named = f" {answer.error_type}" if answer.error_type else ""
    return f"command {answer.command_id} of {answer.aggregate_root_id} was answered {answer.status}{named}"


def agree(facts: Facts) -> Iterator[str]:
    """All answers to one command are equal, and belong to it. If queues were added while commands waited, answers that
    leave no row may differ from others."""
    for id, answers in facts.answers_by_command.items():
        final = [one for one in answers if facts.are_all_answers_final or not _leaves_no_row(one)]
        for answer in final[1:]:
            if answer != final[0]:
                yield f"command {id} was answered in two ways: {_shown(final[0])} and {_shown(answer)}"
        send = facts.sent.get(id)
        if send is None:
            yield f"command {id} was answered, and no client has sent it"
        elif any(answer.aggregate_root_id != send.aggregate_root_id for answer in answers):
            yield f"command {id} of {send.aggregate_root_id} got the answer of another aggregate"


def _shown(answer: Answer) -> str:
    parts = [answer.status, f"version {answer.version}", f"value {answer.value!r}"]
    return " ".join([*parts, answer.error_type, answer.error_message]).strip()
