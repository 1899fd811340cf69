from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.decoding import Stream, text_of
from chaos.checker.facts import Facts
from chaos.checker.rules.texts import same_text


def as_sent(facts: Facts) -> Iterator[str]:
    """The first event of a client's command has the command's values in all common fields."""
    for row in facts.stored:
        send = facts.sent.get(row.command_id)
        contents = row.contents if send is not None else None
        if send is None or not isinstance(contents, Stream) or not contents.events:
            continue
        stored = contents.events[0].fields
        for name in sorted(send.fields.keys() & stored.keys()):
            if not same_text(text_of(stored[name]), send.fields[name]):
                yield (
                    f"command {row.command_id} of {row.aggregate_root_id} was sent with {name}={send.fields[name]!r}, "
                    f"and stored is {text_of(stored[name])!r}"
                )
