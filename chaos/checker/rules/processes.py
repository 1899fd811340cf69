from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import Facts
from chaos.checker.replay.bank import Replay
from chaos.checker.replay.follow_ups import TYPES, FollowUp


def process_managers(facts: Facts) -> Iterator[str]:
    """Each command that must follow is stored, no other command of these types is, and every transfer has ended."""
    for follow_up in facts.replay.follow_ups.values():
        rows = facts.rows_by_key.get(follow_up.key, ())
        if not rows and not _may_leave_no_row(facts.replay, follow_up):
            dead = "; it is a dead letter" if follow_up.key in facts.dead else ""
            yield f"{_named(follow_up)} is not stored{dead}"
        for row in rows:
            if row.command_type != follow_up.type_name:
                yield f"{_named(follow_up)} is stored as {row.command_type}"
    for row in facts.stored:
        if row.command_type in TYPES and row.key not in facts.replay.follow_ups and row.command_id not in facts.sent:
            yield f"{row.command_type} {row.command_id} of {row.aggregate_root_id} is stored, and follows from nothing"
    yield from _half_done(facts.replay)


def _named(follow_up: FollowUp) -> str:
    id, target = follow_up.command_id, follow_up.aggregate_root_id
    return f"{follow_up.type_name} {id} of {target}, which follows from {follow_up.cause},"


def _may_leave_no_row(state: Replay, follow_up: FollowUp) -> bool:
    """Return True if the command may have changed nothing, and so left no row."""
    transfer = state.transfers.get(follow_up.transfer)
    if follow_up.type_name in ("bank.NoteReserved", "bank.CancelTransfer"):
        return transfer is None or transfer.status == "cancelled"
    if follow_up.type_name == "bank.CancelReservation":
        account = state.accounts.get(follow_up.aggregate_root_id)
        return account is None or follow_up.transfer not in {*account.outgoing, *account.incoming}
    return False


def _half_done(state: Replay) -> Iterator[str]:
    for transfer in state.transfers.values():
        yield from transfer.problems
        if not transfer.has_ended:
            yield f"transfer {transfer.id} has not ended, it is {transfer.status}"
    for account in state.accounts.values():
        for id in (*account.outgoing, *account.incoming):
            if id not in state.transfers or state.transfers[id].has_ended:
                yield f"account {account.id} still has a reservation for transfer {id}"
