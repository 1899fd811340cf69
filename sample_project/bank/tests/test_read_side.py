"""Transfers, read models and the cache, in the test's own transaction."""

from __future__ import annotations

from decimal import Decimal

import pytest
import redis
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import SimpleTestCase, TestCase, override_settings

from enode_django import WaitFor, execute_command, send_commands
from enode_django.exceptions import SubscriberUnavailable
from enode_django.testing import InlineCommandBus, given, inline
from sample_project.bank.domain import (
    AccountClosed,
    AccountOpened,
    CancelTransfer,
    CloseAccount,
    Deposit,
    Deposited,
    OpenAccount,
    ReservationCancelled,
    StartTransfer,
    TransferCancelled,
    TransferCompleted,
    TransferConfirmed,
    Withdraw,
    WithdrawalReserved,
)
from sample_project.bank.event_handlers import cached_balance, remember_balance
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee
from sample_project.bank.projections import AccountSummaries, Ledger, Payees
from sample_project.embedded import Redis
from sample_project.settings import cache_url


def redis_at(url: str) -> dict[str, dict[str, str]]:
    return {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}}


UNREACHABLE = redis_at("redis://127.0.0.1:1")
IN_THIS_PROCESS = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


@override_settings(CACHES=IN_THIS_PROCESS)
class ReadSideCase(TestCase):
    def setUp(self) -> None:
        self.addCleanup(cache.clear)
        self.bus: InlineCommandBus = self.enterContext(inline())
        send_commands(
            [
                OpenAccount("a", owner="Ada"),
                OpenAccount("b", owner="Bob"),
                Deposit("a", amount=Decimal(10)),
            ]
        )

    def transfer(self, amount: int, source: str = "a", target: str = "b") -> None:
        send_commands([StartTransfer("t", source=source, target=target, amount=Decimal(amount))])

    def summary(self, account: str) -> object:
        """Return the balance, and its available part."""
        row = AccountSummary.objects.get(pk=account)
        return row.balance, row.available

    def reason(self) -> str:
        (cancelled,) = (event for event in self.bus.events if isinstance(event, TransferCancelled))
        assert not any(isinstance(event, TransferCompleted) for event in self.bus.events)
        return cancelled.reason


class ASummary(SimpleTestCase):
    def test_what_is_reserved_is_not_available(self) -> None:
        summary = given(AccountSummaries, "a", AccountOpened(owner="Ada"))
        summary.when(Deposited(amount=Decimal(10), balance=Decimal(10))).then(owner="Ada", balance=10, available=10)
        summary.when(WithdrawalReserved(transfer="t", amount=Decimal(7))).then(balance=10, available=3)
        summary.when(ReservationCancelled(transfer="t", released=Decimal(7))).then(balance=10, available=10)
        summary.when(AccountClosed()).then(closed=True, version=5)


class ThePayees(ReadSideCase):
    def test_transfers_are_counted_in_any_order(self) -> None:
        confirmed = TransferConfirmed(source="a", target="b")
        payees = given(Payees, "t1", confirmed).when(confirmed, id="t2").then(("a", "b"), transfers=2)
        payees.when(TransferConfirmed(source="b", target="a"), id="t3").then(("b", "a"), transfers=1)
        payees.then_in_any_order()

    def test_each_transfer_of_money_counts(self) -> None:
        for number in range(2):
            send_commands([StartTransfer(f"t{number}", source="a", target="b", amount=Decimal(1))])
        (payee,) = Payee.objects.all()
        assert (payee.source, payee.target, payee.transfers) == ("a", "b", 2)
        assert str(payee) == "a to b: 2"


class Transfers(ReadSideCase):
    def test_a_transfer_moves_the_money(self) -> None:
        self.transfer(7)
        assert isinstance(self.bus.events[-1], TransferCompleted)
        assert (self.summary("a"), self.summary("b")) == ((3, 3), (7, 7))

    def test_too_little_money_cancels_it(self) -> None:
        self.transfer(11)
        assert self.reason() == "the balance is too low"
        assert (self.summary("a"), self.summary("b")) == ((10, 10), (0, 0))

    def test_a_closed_target_cancels_it_and_the_source_may_spend_its_money(self) -> None:
        send_commands([CloseAccount("b")])
        self.transfer(7)
        assert self.reason() == "the account is closed"
        assert self.bus.events[-1] == ReservationCancelled(transfer="t", released=Decimal(7))
        assert self.summary("a") == (10, 10)
        send_commands([Withdraw("a", amount=Decimal(10))])
        assert self.summary("a") == (0, 0)

    def test_an_unknown_account_cancels_it(self) -> None:
        for place, (source, target) in enumerate([("a", "x"), ("x", "a"), ("a", "t2")]):
            with self.subTest(source=source, target=target):
                id = f"t{place}"
                send_commands([StartTransfer(id, source=source, target=target, amount=Decimal(7))])
                ended = [event for event in self.bus.events if isinstance(event, TransferCancelled)]
                assert (ended[-1].aggregate_root_id, ended[-1].reason) == (id, "there is no such account")
                assert self.summary("a") == (10, 10)

    def test_one_that_was_completed_cannot_be_cancelled(self) -> None:
        self.transfer(7)
        send_commands([CancelTransfer("t", reason="too late")])
        assert self.bus.results[-1].error_type == "bank.TransferIsConfirmed"
        assert (self.summary("a"), self.summary("b")) == ((3, 3), (7, 7))


class ReadModels(ReadSideCase):
    def test_a_summary_follows_its_account(self) -> None:
        opened = AccountSummary.objects.get(pk="b")
        send_commands([CloseAccount("b")])
        row = AccountSummary.objects.get(pk="b")
        assert (row.owner, row.closed, row.version) == ("Bob", True, 2)
        assert row.opened_at == opened.opened_at == self.bus.events[1].timestamp

    def test_who_waits_until_it_is_handled_sees_it(self) -> None:
        deposit = Deposit("b", amount=Decimal(5))
        execute_command(deposit, wait_for=WaitFor.subscriber(AccountSummaries))
        assert self.summary("b") == (5, 5)

    def test_every_booking_has_an_entry(self) -> None:
        send_commands([Withdraw("a", amount=Decimal(1))])
        self.transfer(7)
        entries = LedgerEntry.objects.order_by("account", "version")
        found: object = list(entries.values_list("account", "kind", "amount", "balance", "transfer"))
        assert found == [
            ("a", "deposit", 10, 10, ""),
            ("a", "withdrawal", -1, 9, ""),
            ("a", "transfer out", -7, 2, "t"),
            ("b", "transfer in", 7, 7, "t"),
        ]

    def test_people_look_and_do_not_touch(self) -> None:
        self.client.force_login(User.objects.create_superuser("clerk"))
        self.transfer(7)
        for name, count in (("accountsummary", 2), ("ledgerentry", 3)):
            page = f"/admin/bank/{name}/"
            assert self.client.get(page).context["cl"].result_count == count
            assert self.client.get(f"{page}add/").status_code == 403
        assert self.client.post("/admin/bank/accountsummary/a/delete/", {"post": "yes"}).status_code == 403


class ACacheThatTakesNothing(ReadSideCase):
    @pytest.fixture(autouse=True)
    def use_redis(self, private_redis: Redis) -> None:
        self.redis = private_redis

    def assert_it_is_waited_for(self) -> None:
        event = next(event for event in self.bus.events if isinstance(event, Deposited))
        with override_settings(CACHES=redis_at(self.redis.url)), pytest.raises(SubscriberUnavailable) as caught:
            remember_balance(event)
        assert caught.value.retriable

    def test_a_full_one_is_no_fault_of_the_event(self) -> None:
        with redis.from_url(self.redis.url) as client:
            client.config_set("maxmemory", 1)
        self.assert_it_is_waited_for()

    def test_a_replica_that_nobody_has_promoted_yet_is_none_either(self) -> None:
        with redis.from_url(self.redis.url) as client:
            client.replicaof("127.0.0.1", 1)
        self.assert_it_is_waited_for()


class TheCacheOfBalances(ReadSideCase):
    def test_it_follows_the_events(self) -> None:
        with self.assertNumQueries(0):
            assert cached_balance("a") == 10
        self.transfer(7)
        with self.assertNumQueries(0):
            assert cached_balance("a") == 3
            assert cached_balance("b") == 7

    def test_what_is_not_in_it_comes_from_the_read_model(self) -> None:
        cache.clear()
        with self.assertNumQueries(2):
            assert cached_balance("a") == 10
            assert cached_balance("nobody") is None

    def test_an_account_that_is_closed_leaves_it(self) -> None:
        send_commands([Withdraw("a", amount=Decimal(10)), CloseAccount("a")])
        with self.assertNumQueries(1):
            assert cached_balance("a") == 0

    def test_a_cache_that_is_away_is_no_fault_of_the_event(self) -> None:
        with override_settings(CACHES=UNREACHABLE), pytest.raises(SubscriberUnavailable) as caught:
            remember_balance(self.deposited())
        assert caught.value.retriable

    def deposited(self) -> Deposited:
        (event,) = (event for event in self.bus.events if isinstance(event, Deposited))
        return event


def test_the_cache_is_another_database_than_the_queue() -> None:
    """Clearing it must not empty the queue."""
    assert cache_url("redis://:secret@127.0.0.1:6379/0") == "redis://:secret@127.0.0.1:6379/1"
    assert cache_url("redis://127.0.0.1") == "redis://127.0.0.1/1"
    assert cache_url("unix:///run/redis.sock?db=0") == "unix:///run/redis.sock?db=1"


class OneSubscriberAlone(TestCase):
    def test_projections_can_be_tested_without_the_process(self) -> None:
        with inline(followed_by=[AccountSummaries, Ledger]):
            send_commands(
                [
                    OpenAccount("a", owner="Ada"),
                    Deposit("a", amount=Decimal(10)),
                    StartTransfer("t", source="a", target="x", amount=Decimal(7)),
                ]
            )
        found: object = AccountSummary.objects.values_list("balance", "available").get()
        assert found == (10, 10)
        assert list(LedgerEntry.objects.values_list("amount", flat=True)) == [10]
