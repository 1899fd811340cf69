"""Lots, bids, and the process manager that closes a lot at its third bid. Commands have real handlers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    ProcessManager,
    applies,
    command_handler,
    ends,
    handles,
    starts,
)


class OpenLot(Command):
    type_name = "auctions.OpenLot"


class CloseLot(Command):
    type_name = "auctions.CloseLot"
    winner: str
    bids: int


class Bid(Command):
    type_name = "auctions.Bid"
    lot: str
    amount: int


class LotOpened(DomainEvent):
    type_name = "auctions.LotOpened"


class LotClosed(DomainEvent):
    type_name = "auctions.LotClosed"
    winner: str
    bids: int


class BidMade(DomainEvent):
    type_name = "auctions.BidMade"
    lot: str
    amount: int


class BidRefused(DomainException):
    type_name = "auctions.BidRefused"
    lot: str


class Lot(AggregateRoot):
    type_name = "auctions.Lot"

    @command_handler(creates=True)
    def open(self, command: OpenLot) -> None:
        self.apply(LotOpened())

    @command_handler
    def close(self, command: CloseLot) -> None:
        self.apply(LotClosed(winner=command.winner, bids=command.bids))

    @applies
    def _ignore(self, event: LotOpened | LotClosed) -> None: ...


class Bidder(AggregateRoot):
    type_name = "auctions.Bidder"

    @command_handler(creates=True)
    def bid(self, command: Bid) -> None:
        if command.amount <= 0:
            raise BidRefused("bid more", lot=command.lot)
        self.apply(BidMade(lot=command.lot, amount=command.amount))

    @applies
    def _ignore(self, event: BidMade) -> None: ...


@dataclasses.dataclass
class Auction:
    highest: int = 0
    winner: str = ""
    bids: int = 0


class Auctions(ProcessManager):
    name = "auctions.auctions"
    abstract = True  # it runs only in tests that name it
    start = "beginning"
    state = Auction

    @starts
    def opened(self, auction: Auction, event: LotOpened) -> None: ...

    @handles(key=lambda event: event.lot)
    def bid(self, auction: Auction, event: BidMade | BidRefused) -> Iterator[Command]:
        auction.bids += 1
        if isinstance(event, BidMade) and event.amount > auction.highest:
            auction.highest, auction.winner = event.amount, event.aggregate_root_id
        if auction.bids == 3:
            yield CloseLot(event.lot, winner=auction.winner, bids=auction.bids)

    @ends
    def closed(self, auction: Auction, event: LotClosed) -> None: ...
