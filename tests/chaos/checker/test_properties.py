"""Random runs keep all promises; whatever is altered in one of them is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chaos.checker.facts import Acquired, Committed, Facts
from chaos.checker.rules import violations
from tests.chaos.checker.altering import changed, rebuilt, with_fields
from tests.chaos.checker.builder import World

ACCOUNTS = st.sampled_from(["a", "b", "c", "nobody"])
AMOUNTS = st.decimals(min_value=0, max_value=50, places=2)
NOTES = st.sampled_from(["n", "m"])
STEPS = st.one_of(
    st.tuples(st.just("bank.Deposit"), ACCOUNTS, st.fixed_dictionaries({"amount": AMOUNTS})),
    st.tuples(st.just("bank.Withdraw"), ACCOUNTS, st.fixed_dictionaries({"amount": AMOUNTS})),
    st.tuples(
        st.just("bank.StartTransfer"),
        st.sampled_from(["t", "u", "v"]),
        st.fixed_dictionaries({"source": ACCOUNTS, "target": ACCOUNTS, "amount": AMOUNTS}),
    ),
    st.tuples(st.just("bank.CancelTransfer"), st.sampled_from(["t", "u"]), st.just({"reason": "changed my mind"})),
    st.tuples(st.just("bank.OpenAccount"), ACCOUNTS, st.just({"owner": "Ada"})),
    st.tuples(st.just("bank.CloseAccount"), ACCOUNTS, st.just({})),
    st.tuples(st.just("notes.CreateNote"), NOTES, st.just({"title": "first"})),
    st.tuples(st.just("notes.ChangeTitle"), NOTES, st.just({"title": "second"})),
    st.tuples(st.just("notes.DeleteNote"), NOTES, st.just({})),
    st.just(("settle", "", {})),
)


@st.composite
def runs(draw: st.DrawFn) -> Facts:
    """Draw a run: two accounts with money, then any commands. Follow-up commands are handled in between."""
    world = World()
    for account in ("a", "b"):
        world.do("bank.OpenAccount", account, owner="Ada")
        world.do("bank.Deposit", account, amount=Decimal(30))
    for name, id, fields in draw(st.lists(STEPS, max_size=12)):
        if name == "settle":
            world.settle()
        else:
            world.do(name, id, **fields)
    return world.facts()


@settings(max_examples=40, deadline=None)
@given(runs())
def test_a_valid_run_breaks_no_rule(facts: Facts) -> None:
    assert list(violations(facts)) == []


Alter = Callable[[Facts, int], Facts]


def drop_row(facts: Facts, place: int) -> Facts:
    return replace(facts, stored=changed(facts.stored, place))


def duplicate_row(facts: Facts, place: int) -> Facts:
    return replace(facts, stored=[*facts.stored, facts.stored[place % len(facts.stored)]])


def swap_versions(facts: Facts, place: int) -> Facts:
    """Swap the first two versions of an aggregate."""
    histories = [rows for rows in facts.histories.values() if len(rows) > 1]
    rows = histories[place % len(histories)]
    first, second = rows[0], rows[1]
    others = [row for row in facts.stored if row not in (first, second)]
    swapped = [rebuilt(first, version=second.version), rebuilt(second, version=first.version)]
    return replace(facts, stored=[*others, *swapped])


def raise_version(facts: Facts, place: int) -> Facts:
    rows = [at for at, row in enumerate(facts.stored) if row.version is not None]
    at = rows[place % len(rows)]
    row = facts.stored[at]
    return replace(facts, stored=changed(facts.stored, at, rebuilt(row, version=(row.version or 0) + 1)))


def alter_amount(facts: Facts, place: int) -> Facts:
    rows = [
        at
        for at, row in enumerate(facts.stored)
        if not row.is_refusal and "amount" in getattr(row.contents, "events")[0].fields  # noqa: B009
    ]
    at = rows[place % len(rows)]
    return replace(facts, stored=changed(facts.stored, at, with_fields(facts.stored[at], amount=Decimal("777.77"))))


def alter_sent_amount(facts: Facts, place: int) -> Facts:
    """Change the amount of one accepted command that the client sent. The stored amount then differs from it."""
    accepted = {answer.command_id for answer in facts.answers if answer.status == "SUCCESS"}
    sends = [at for at, send in enumerate(facts.sends) if "amount" in send.fields and send.command_id in accepted]
    at = sends[place % len(sends)]
    send = facts.sends[at]
    return replace(facts, sends=changed(facts.sends, at, send._replace(fields={**send.fields, "amount": "777.77"})))


def alter_answer(facts: Facts, place: int, **now: Any) -> Facts:
    answers = [at for at, answer in enumerate(facts.answers) if answer.status == "SUCCESS"]
    at = answers[place % len(answers)]
    return replace(facts, answers=changed(facts.answers, at, facts.answers[at]._replace(**now)))


def alter_answered_version(facts: Facts, place: int) -> Facts:
    return alter_answer(facts, place, version=99)


def alter_answered_status(facts: Facts, place: int) -> Facts:
    return alter_answer(facts, place, status="FAILED", error_type="Exploded")


def contradict_answer(facts: Facts, place: int) -> Facts:
    answer = facts.answers[place % len(facts.answers)]
    return replace(facts, answers=[*facts.answers, answer._replace(error_message="another one")])


def drop_follow_up(facts: Facts, place: int) -> Facts:
    places = _follow_ups(facts)
    return replace(facts, stored=changed(facts.stored, places[place % len(places)]))


def duplicate_follow_up(facts: Facts, place: int) -> Facts:
    """Store a follow-up again, under its own id, at the end of its aggregate."""
    places = _follow_ups(facts)
    row = facts.stored[places[place % len(places)]]
    version = None if row.version is None else (facts.histories[row.aggregate_root_id][-1].version or 0) + 1
    return replace(facts, stored=[*facts.stored, rebuilt(row, command_id="another", version=version)])


def _follow_ups(facts: Facts) -> list[int]:
    places = [at for at, row in enumerate(facts.stored) if row.key in facts.replay.follow_ups]
    assume(places)
    return places


def move_to_another_shard(facts: Facts, place: int) -> Facts:
    """A row of an aggregate that has others."""
    rows = [at for at, row in enumerate(facts.stored) if row.aggregate_root_id in ("a", "b")]
    at = rows[place % len(rows)]
    return replace(facts, stored=changed(facts.stored, at, replace(facts.stored[at], shard=1)))


def drop_handled(facts: Facts, place: int) -> Facts:
    return replace(facts, handled=changed(facts.handled, place))


def handle_too_early(facts: Facts, place: int) -> Facts:
    places = [at for at, line in enumerate(facts.handled) if line.version > 1]
    at = places[place % len(places)]
    return replace(facts, handled=changed(facts.handled, at, facts.handled[at]._replace(at=0.0)))


def drop_table_row(facts: Facts, place: int) -> Facts:
    names = [name for name, rows in facts.tables.items() if rows]
    name = names[place % len(names)]
    return replace(facts, tables={**facts.tables, name: changed(facts.tables[name], place)})


def let_checkpoint_go_back(facts: Facts, place: int) -> Facts:
    key = sorted(facts.checkpoints)[place % len(facts.checkpoints)]
    return replace(facts, checkpoints={**facts.checkpoints, key: facts.checkpoints[key] - 1})


def let_offset_go_back(facts: Facts, place: int) -> Facts:
    samples = [sample for sample in facts.samples if sample.committed]
    sample = samples[place % len(samples)]
    return replace(facts, samples=[*facts.samples, sample._replace(committed=-1)])


def let_commit_go_back(facts: Facts, place: int) -> Facts:
    commits = [record for record in facts.log if isinstance(record, Committed) and record.offset]
    return replace(facts, log=[*facts.log, commits[place % len(commits)]._replace(offset=0)])


def give_epoch_to_two_owners(facts: Facts, place: int) -> Facts:
    acquired = [record for record in facts.log if isinstance(record, Acquired)]
    return replace(facts, log=[*facts.log, acquired[place % len(acquired)]._replace(owner="another")])


def lose_batch(facts: Facts, place: int) -> Facts:
    """Remove any batch of commands but the last one of its queue, whose loss would leave no gap."""
    commits = [at for at, record in enumerate(facts.log) if isinstance(record, Committed)]
    batches = [at for at in range(commits[0]) if not isinstance(facts.log[at], Acquired | Committed)]
    counted = [at for at in batches if getattr(facts.log[at], "topic") == "commands"]  # noqa: B009
    return replace(facts, log=changed(facts.log, counted[place % len(counted)]))


def drop_published(facts: Facts, place: int) -> Facts:
    """Remove one publication. Each stream but the last is published once."""
    published = facts.published or ()
    return replace(facts, published=changed(published, place % (len(published) - 2)))


def alter_published(facts: Facts, place: int) -> Facts:
    published = facts.published or ()
    at = place % len(published)
    return replace(facts, published=changed(published, at, published[at]._replace(digest=b"otherway")))


ALTERATIONS: list[Alter] = [
    drop_row,
    duplicate_row,
    swap_versions,
    raise_version,
    alter_amount,
    alter_sent_amount,
    alter_answered_version,
    alter_answered_status,
    contradict_answer,
    drop_follow_up,
    duplicate_follow_up,
    move_to_another_shard,
    drop_handled,
    handle_too_early,
    drop_table_row,
    let_checkpoint_go_back,
    let_offset_go_back,
    let_commit_go_back,
    give_epoch_to_two_owners,
    lose_batch,
    drop_published,
    alter_published,
]


@settings(max_examples=100, deadline=None)
@given(runs(), st.sampled_from(ALTERATIONS), st.integers(0, 1_000))
def test_any_alteration_is_found(facts: Facts, alter: Alter, place: int) -> None:
    assert any(violations(alter(facts, place)))
