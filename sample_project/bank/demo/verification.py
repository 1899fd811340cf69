"""Whether the database holds exactly what the demo sent and was answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby

from enode_django import CommandResult
from enode_django.commanding.loading import replay_records
from enode_django.commanding.results import stored_result
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import EnodeError
from enode_django.models import EventStream
from sample_project.bank.demo.workload import Workload, signed_amount
from sample_project.bank.domain import BankAccount

PORTION = 2_000


def stored_records(workload: Workload) -> Iterator[StreamRecord]:
    """Every row of the run, by account and version; an account's refusals come last."""
    rows = EventStream.objects.filter(aggregate_root_id__startswith=f"{workload.run}-")
    for row in (
        rows.order_by("aggregate_root_id", "version").values_list(*StreamRecord._fields).iterator(chunk_size=PORTION)
    ):
        yield StreamRecord(*row)


class Verification:
    """Reads the records once; ``problems`` are sentences for a person, empty when all is well."""

    def __init__(self, workload: Workload, answered: Sequence[CommandResult], records: Iterable[StreamRecord]) -> None:
        self.problems: list[str] = []
        self._workload = workload
        self._movements = bytearray(workload.commands)
        self._answered = {result.command_id: result for result in answered}
        self._others: defaultdict[str, int] = defaultdict(int)
        for id, streams in groupby(records, lambda record: record.aggregate_root_id):
            self._check_account(id, list(streams))
        self._check_all_are_there()

    def _check_account(self, id: str, streams: Sequence[StreamRecord]) -> None:
        accepted = [stream for stream in streams if stream.version is not None]
        versions = [stream.version for stream in accepted]
        if versions != list(range(1, len(versions) + 1)):
            self._problem(f"account {id} has the versions {versions}: there is a gap")
            return
        should_be = sum(map(self._account_for, streams), Decimal(0))
        try:
            account = replay_records(accepted)
        except EnodeError as error:
            self._problem(f"account {id} cannot be read: {error}")
            return
        if not isinstance(account, BankAccount):
            self._problem(f"account {id} was never opened")
        elif account.balance != should_be:
            self._problem(f"account {id} has the balance {account.balance}; what was accepted makes {should_be}")

    def _account_for(self, record: StreamRecord) -> Decimal:
        """Note that a command is stored; returns what it was to add to the balance if it was accepted."""
        prefix = self._workload.movement_prefix
        if not record.command_id.startswith(prefix):
            return self._account_for_other(record)
        number = int(record.command_id.removeprefix(prefix))
        if not number < len(self._movements):
            self._problem(f"command {record.command_id} is stored, but nobody sent it")
            return Decimal(0)
        self._movements[number] = min(self._movements[number] + 1, 255)
        movement = self._workload.movement(number)
        if movement.aggregate_root_id != record.aggregate_root_id:
            self._problem(f"command {record.command_id} was sent to another account than {record.aggregate_root_id}")
        return signed_amount(movement) if record.version is not None else Decimal(0)

    def _account_for_other(self, record: StreamRecord) -> Decimal:
        """Openings, and what was answered: an answer is final, so it is what the row says."""
        self._others[record.command_id] += 1
        answer = self._answered.get(record.command_id)
        if answer is not None and answer != stored_result(record):
            self._problem(f"command {record.command_id} was answered {answer}, but stored is {stored_result(record)}")
        return Decimal(1) if answer is not None and record.version is not None else Decimal(0)

    def _check_all_are_there(self) -> None:
        for number, times in enumerate(self._movements):
            if times != 1:
                self._problem(f"command {self._workload.movement_prefix}{number:09d} is stored {times} times")
        others = [*self._answered, *(opening.id for opening in self._workload.openings())]
        for id in others:
            if self._others[id] != 1:
                self._problem(f"command {id} is stored {self._others[id]} times")

    def _problem(self, text: str) -> None:
        self.problems.append(text)
