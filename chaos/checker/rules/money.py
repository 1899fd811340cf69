from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from chaos.checker.facts import Facts
from chaos.checker.replay.accounts import Movement, movements
from chaos.checker.replay.transfers import Transfer


def money(facts: Facts) -> Iterator[str]:
    """Balances follow from the movements and are never negative; a transfer moves its amount on both sides or on none;
    the sum of all balances was paid in."""
    state = facts.replay
    moved = movements(state.accounts.values())
    for account in state.accounts.values():
        yield from account.problems
    for transfer in state.transfers.values():
        yield from _moved(transfer, moved.pop(transfer.id, []))
    for id in moved:
        yield f"transfer {id} has moved money, and was never started"
    balances = sum((account.balance for account in state.accounts.values()), Decimal(0))
    paid_in = sum((account.paid_in for account in state.accounts.values()), Decimal(0))
    if balances != paid_in:
        yield f"the balances add up to {balances}; {paid_in} was paid in, less what was paid out"


def _moved(transfer: Transfer, found: list[Movement]) -> Iterator[str]:
    """Yield the wrong or missing movements of a transfer. One side alone may have moved before it is completed; another
    rule checks that it ends."""
    both = [Movement(transfer.source, -transfer.amount), Movement(transfer.target, transfer.amount)]
    allowed = transfer.status in ("confirmed", "completed")
    for movement in found:
        if not allowed or movement not in both or found.count(movement) > 1:
            yield f"transfer {transfer.id} is {transfer.status}, and moved {movement.amount} on {movement.account}"
    if transfer.status == "completed":
        for movement in both:
            if movement not in found:
                yield f"transfer {transfer.id} is completed without moving {movement.amount} on {movement.account}"
