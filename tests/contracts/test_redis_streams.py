"""Tests that need a real Redis: faults of the server, and the keys that are left in it."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import redis

from enode_django.equeue.assignment import divide
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.redis import inbox as redis_inbox
from enode_django.equeue.redis import reading as redis_reading
from enode_django.equeue.redis.batches import RECEIPTS_PER_CALL
from enode_django.equeue.redis.claim_scripts import COMMIT
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.transport import PRODUCER_SECONDS
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ConfigurationError, PartlyUnavailable, QueueError, QueueHeld, TransportUnavailable
from enode_django.testing.transport_lease_contract import DEADLINE, eventually, messages
from sample_project.embedded_servers import Redis, Valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis({"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def running(server: Redis) -> Iterator[Redis]:
    """The module's server, which a test may stop, and whose settings it may change."""
    server.start()
    yield server
    server.restart()


@pytest.fixture
def client(server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def transport(server: Redis, prefix: str) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(server.url, prefix=prefix, timeout=DEADLINE)
    transport.create_topic("topic", 4)
    yield transport
    transport.close()


def test_killed_server_loses_no_acknowledged_message(running: Redis, transport: RedisStreamsTransport) -> None:
    acknowledged: list[tuple[int, bytes]] = []
    failures: list[TransportUnavailable] = []
    stop = threading.Event()

    def send_all_the_time() -> None:
        number = 0
        while not stop.is_set():
            bodies = [b"%d" % (number + index) for index in range(20)]
            try:
                first = transport.send("topic", {0: bodies})[0]
            except TransportUnavailable as error:
                failures.append(error)
                stop.wait(0.01)
            else:
                acknowledged.extend(enumerate(bodies, first))
                number += 20

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all_the_time)
        try:
            eventually(lambda: len(acknowledged) >= 200 or None)
            running.kill()
            eventually(lambda: failures or None)
            running.start()
            reached = len(acknowledged)
            eventually(lambda: len(acknowledged) >= reached + 200 or None)
        finally:
            stop.set()
        sending.result()
    stored = messages(transport, "topic", 0)
    assert set(acknowledged) <= set(stored)
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    assert all(isinstance(failure.__cause__, redis.RedisError) for failure in failures)


def test_waiting_pull_ends_with_the_server_and_goes_on_with_the_next(
    running: Redis, client: redis.Redis, transport: RedisStreamsTransport
) -> None:
    with ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(transport.pull, "topic", {0: 0}, limit=1, wait=3 * DEADLINE)
        eventually(lambda: _someone_waits(client))
        running.kill()
        with pytest.raises(TransportUnavailable):
            pulling.result(DEADLINE)
    running.start()
    transport.send("topic", {0: [b"x"]})
    assert messages(transport, "topic", 0) == [(0, b"x")]


def test_leases_epochs_commits_and_receipts_survive_a_restart(running: Redis, transport: RedisStreamsTransport) -> None:
    lease = transport.acquire("group", "topic", 0, "one", 60)
    transport.commit("group", "topic", {0: Commit(lease.epoch, 7, [Receipt(6, b"kept")], 10)})
    running.restart()
    with pytest.raises(QueueHeld):
        transport.acquire("group", "topic", 0, "two", 60)
    again = transport.acquire("group", "topic", 0, "one", 60)
    assert again.epoch > lease.epoch
    assert again.committed == 7
    assert transport.receipts("group", "topic", 0) == [b"kept"]


def test_frozen_server_is_given_up_after_the_timeout(
    running: Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    impatient = RedisStreamsTransport(running.url, prefix=prefix, timeout=0.2)
    running.pause()
    try:
        with pytest.raises(TransportUnavailable):
            impatient.send("topic", {0: [b"x"]})
    finally:
        running.resume()
    offset = eventually(lambda: _sent(impatient, b"y"))
    impatient.close()
    assert messages(transport, "topic", 0)[-1] == (offset, b"y")


def test_server_that_cannot_write_now_is_retriable_and_stores_nothing(
    running: Redis, client: Any, prefix: str, transport: RedisStreamsTransport
) -> None:
    inbox = transport.open_inbox()
    epoch = transport.acquire("group", "topic", 0, "one", 60).epoch
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    careful = RedisStreamsTransport(running.url, prefix=prefix, wait_replicas=1)
    for write in (
        lambda: careful.send("topic", {0: [b"x"]}),
        lambda: careful.commit("group", "topic", {0: Commit(epoch + 1, 1)}),  # its script writes nothing
        lambda: transport.send("topic", {0: [b"x"]}),
        lambda: transport.send("topic", {0: [b"x"] * 1_000, 1: [b"x"]}),
        lambda: transport.reply([(inbox.address, b"x")]),
        lambda: transport.acquire("group", "topic", 0, "one", 60),
        lambda: transport.commit("group", "topic", {0: Commit(epoch, 1)}),
        lambda: transport.commit("group", "topic", {0: Commit(epoch, 1, [Receipt(0, b"x")], 10)}),
        lambda: transport.renew("group", "topic", "one", {0: epoch}, 60),
    ):
        with pytest.raises(TransportUnavailable):
            write()
    careful.close()
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert transport.send("topic", {0: [b"y"]}) == {0: 0}
    assert transport.receipts("group", "topic", 0) == []
    # It has been a replica: writes may have been lost meanwhile, and with them the lease.
    assert transport.commit("group", "topic", {0: Commit(epoch, 1)}) == {0}
    again = transport.acquire("group", "topic", 0, "one", 60)
    assert again.committed == 0
    assert transport.commit("group", "topic", {0: Commit(again.epoch, 1)}) == set()


def test_an_epoch_that_was_lost_with_a_failover_is_not_issued_again_after_the_next(
    running: Redis, client: Any, prefix: str, transport: RedisStreamsTransport
) -> None:
    def fail_over() -> None:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        client.execute_command("REPLICAOF", "NO", "ONE")

    known = transport.acquire("group", "topic", 0, "one", 60)
    stored = {key: client.dump(key) for key in client.scan_iter(f"{prefix}:{{topic:0}}:*")}
    fail_over()
    lost = transport.acquire("group", "topic", 0, "one", 60)
    for key, value in stored.items():  # as on a replica that has never had the second lease
        client.restore(key, 0, value, replace=True)
    fail_over()
    held = transport.acquire("group", "topic", 0, "one", 60)
    assert len({known.epoch, lost.epoch, held.epoch}) == 3
    assert transport.commit("group", "topic", {0: Commit(lost.epoch, 1)}) == {0}
    assert transport.commit("group", "topic", {0: Commit(held.epoch, 1)}) == set()


def test_no_queue_is_given_to_a_group_that_a_failover_could_let_trimming_forget(
    server: Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    transport.acquire("known", "topic", 0, "one", 60)
    with closing(RedisStreamsTransport(server.url, prefix=prefix, wait_replicas=1, wait_timeout=0.01)) as careful:
        for _ in range(2):  # it is stored by then, and still unconfirmed
            with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
                careful.acquire("group", "topic", 0, "one", 60)
            with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
                careful.set_offset("other group", "topic", 0, 0)
    states = transport.groups("topic")
    assert {name: (state.counts, list(state.claims)) for name, state in states.items()} == {
        "group": (True, []),
        "known": (True, [0]),
        "other group": (True, []),
    }


class Meanwhile:
    """Divides queues after another member has joined, which the division does not know of."""

    def __init__(self, transport: RedisStreamsTransport, *members: str) -> None:
        self._transport = transport
        self._members = list(members)

    def __call__(
        self, queues: Sequence[int], members: Sequence[str], current: Mapping[str, frozenset[int]]
    ) -> Mapping[str, Collection[int]]:
        while self._members:
            self._transport.join("group", "topic", self._members.pop(), 60)
        return divide(queues, members, current)


def test_a_division_is_made_again_when_another_process_has_divided_meanwhile(
    server: Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    allocate = Meanwhile(transport, "two")
    with closing(RedisStreamsTransport(server.url, prefix=prefix, timeout=DEADLINE, allocate=allocate)) as slow:
        membership = slow.join("group", "topic", "one", 60)
    assert (membership.members, len(membership.queues)) == (("one", "two"), 2)
    assert len(transport.join("group", "topic", "two", 60).queues | membership.queues) == 4


def test_a_member_that_is_back_while_it_is_dropped_stays_one(
    server: Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    transport.join("group", "topic", "one", 60)
    transport.join("group", "topic", "two", 0.001)
    eventually(lambda: transport.groups("topic")["group"].members["two"] == 0 or None)
    allocate = Meanwhile(transport, "two")
    with closing(RedisStreamsTransport(server.url, prefix=prefix, timeout=DEADLINE, allocate=allocate)) as slow:
        assert slow.join("group", "topic", "one", 60).members == ("one",)
    assert transport.groups("topic")["group"].members["two"] > 1
    assert transport.join("group", "topic", "one", 60).members == ("one", "two")


def test_producers_are_forgotten_one_by_one(client: Any, prefix: str, transport: RedisStreamsTransport) -> None:
    transport.announce("topic", "recent")
    client.zadd(Keys(prefix).producers("topic"), {"old": (time.time() - PRODUCER_SECONDS - 60) * 1000})
    assert list(transport.producers("topic")) == ["recent"]
    assert 0 < client.ttl(Keys(prefix).producers("topic")) <= PRODUCER_SECONDS


def test_forgotten_scripts_are_loaded_again(client: redis.Redis, transport: RedisStreamsTransport) -> None:
    client.script_flush()
    assert transport.send("topic", {0: [b"x"]}) == {0: 0}
    client.script_flush()
    assert transport.send("topic", {0: [b"x"], 1: [b"x"], 2: [b"x"]}) == {0: 1, 1: 0, 2: 0}
    client.script_flush()
    assert transport.send("topic", {0: [b"x"] * 1_200, 1: [b"x"]}) == {0: 2, 1: 1}
    client.script_flush()
    assert transport.acquire("group", "topic", 0, "one", 60).end == 1_202


def test_scripts_that_no_replica_can_confirm_are_loaded_and_refusals_are_told(
    server: Redis, client: Any, prefix: str, transport: RedisStreamsTransport
) -> None:
    with closing(RedisStreamsTransport(server.url, prefix=prefix, wait_replicas=1, wait_timeout=0.01)) as careful:
        client.script_flush()
        with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
            careful.send("topic", {0: [b"x"]})
        with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
            careful.send("topic", {0: [b"y"] * 1_200, 1: [b"x"]})
        assert transport.end_offsets("topic") == {0: 1_201, 1: 1, 2: 0, 3: 0}
        client.set(f"{prefix}:{{topic:0}}:queue", "no hash")
        with pytest.raises(QueueError, match="WRONGTYPE"):
            careful.send("topic", {0: [b"z"], 1: [b"z"]})


def interrupted_by(meanwhile: Callable[[], object]) -> type[redis.Connection]:
    """Return connections that call ``meanwhile`` behind the first of several scripts that are sent at once."""

    class Interrupted(redis.Connection):
        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            packed = b"".join([command] if isinstance(command, bytes) else command)
            first, *others = filter(None, re.split(rb"(?=\*\d+\r\n\$7\r\nEVALSHA\r\n)", packed))
            super().send_packed_command([first], check_health)
            if others:
                assert self.can_read(DEADLINE)
                meanwhile()
                super().send_packed_command(others, False)

    return Interrupted


def test_no_receipt_is_lost_when_only_the_first_step_of_a_commit_is_refused(
    server: Redis, client: redis.Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    receipts = [Receipt(offset, b"%d" % offset) for offset in range(2 * RECEIPTS_PER_CALL)]
    transport.send("topic", {0: [b"x"] * len(receipts)})
    epoch = transport.acquire("group", "topic", 0, "one", 60).epoch
    options = {"connection_class": interrupted_by(partial(client.script_load, COMMIT.text))}
    with closing(RedisStreamsTransport(server.url, prefix=prefix, timeout=DEADLINE, client=options)) as interrupted:
        interrupted.queue_count("topic")
        client.script_flush()
        commit = Commit(epoch, len(receipts), receipts, len(receipts))
        assert interrupted.commit("group", "topic", {0: commit}) == set()
    assert transport.receipts("group", "topic", 0) == [receipt.body for receipt in receipts]


def test_no_other_send_comes_between_the_chunks_of_one(
    server: Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    bodies = [b"%d" % number for number in range(1_200)]
    options = {"connection_class": interrupted_by(partial(transport.send, "topic", {0: [b"other"]}))}
    transport.send("topic", {1: [b"x"]})  # the server knows the script now
    with closing(RedisStreamsTransport(server.url, prefix=prefix, timeout=DEADLINE, client=options)) as interrupted:
        first = interrupted.send("topic", {0: bodies})[0]
    stored = [body for _, body in messages(transport, "topic", 0)]
    assert len(stored) >= len(bodies) + 1
    assert stored[first : first + len(bodies)] == bodies


def test_a_commit_whose_last_step_failed_is_not_told_as_taken(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = [transport.acquire("group", "topic", queue, "one", 60).epoch for queue in range(2)]
    receipts = [Receipt(offset, b"") for offset in range(RECEIPTS_PER_CALL + 1)]
    commits = {0: Commit(epochs[0], len(receipts), receipts, len(receipts)), 1: Commit(epochs[1], 1)}
    run_each, failed = transport._connection.run_each, [TransportUnavailable("the connection is lost")]
    steps = iter([run_each, lambda calls, **_: failed])
    monkeypatch.setattr(transport._connection, "run_each", lambda calls, **options: next(steps)(calls, **options))
    with pytest.raises(PartlyUnavailable) as some:
        transport.commit("group", "topic", commits)
    assert some.value.answers == {1: True}
    assert transport.committed("group", "topic")[0] == RECEIPTS_PER_CALL


def test_wait_longer_than_one_block_goes_on_waiting(
    monkeypatch: pytest.MonkeyPatch, client: redis.Redis, transport: RedisStreamsTransport
) -> None:
    monkeypatch.setattr(redis_reading, "blocks", partial(redis_reading.blocks, longest=0.02))
    client.config_resetstat()
    with ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(transport.pull, "topic", {0: 0}, limit=1, wait=DEADLINE)
        eventually(lambda: client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0) >= 3 or None)
        transport.send("topic", {0: [b"x"]})
        assert list(pulling.result()[0].bodies) == [b"x"]


def test_close_ends_a_waiting_pull(client: redis.Redis, transport: RedisStreamsTransport) -> None:
    with ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(transport.pull, "topic", {0: 0}, limit=1, wait=3 * DEADLINE)
        eventually(lambda: _someone_waits(client))
        transport.close()
        with pytest.raises(TransportUnavailable):
            pulling.result(DEADLINE)


def test_forked_process_uses_connections_of_its_own(transport: RedisStreamsTransport) -> None:
    def send_and_pull(queue: int) -> None:
        for number in range(100):
            assert transport.send("topic", {queue: [b"%d" % number]}) == {queue: number}
            (batch,) = transport.pull("topic", {queue: number}, limit=1, wait=DEADLINE)
            assert list(batch.bodies) == [b"%d" % number]

    transport.send("topic", {3: [b"x"]})
    transport.pull("topic", {3: 0}, limit=1, wait=1)  # so that both pools hold a connection
    child = os.fork()
    if child == 0:
        code = 1
        try:
            send_and_pull(1)
            code = 0
        finally:
            os._exit(code)
    send_and_pull(0)
    assert os.waitpid(child, 0)[1] == 0


def test_wrong_password_is_a_configuration_error_that_does_not_tell_it(server: Redis) -> None:
    transport = RedisStreamsTransport(f"redis://:open-sesame@127.0.0.1:{server.port}", timeout=DEADLINE)
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{server.port}") as refused:
        transport.create_topic("topic", 1)
    assert "open-sesame" not in str(refused.value)
    with pytest.raises(ConfigurationError):
        RedisStreamsTransport(f"redis://127.0.0.1:{server.port}", timeout=DEADLINE).create_topic("topic", 1)


@pytest.mark.parametrize("service", [Redis, Valkey])
@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        (("~*", "+@all", "-sadd"), {Redis: r"\+(COMMAND|sadd)\b", Valkey: r"\+sadd "}),
        (("~*", "+@all", "-evalsha"), {Redis: r"\+evalsha ", Valkey: r"\+evalsha "}),
        (("~*", "+@all", "-script"), {Redis: r"\+script", Valkey: r"\+script"}),
        (("~others:*", "+@all"), {Redis: "~KEYS", Valkey: "~KEYS"}),
    ],
)
def test_the_rule_is_told_that_a_user_lacks_also_for_a_command_within_a_script(
    service: type[Redis], rules: tuple[str, ...], rule: dict[type[Redis], str]
) -> None:
    with service() as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">open-sesame", *rules)
        transport = RedisStreamsTransport(f"redis://app:open-sesame@127.0.0.1:{server.port}", timeout=DEADLINE)
        with pytest.raises(ConfigurationError, match=rf"denies its user .*; add .*{rule[service]}.*ACL SETUSER"):
            transport.create_topic("topic", 1)


def test_answers_to_nobody_expire_and_name_no_other_key(
    client: redis.Redis, prefix: str, transport: RedisStreamsTransport
) -> None:
    keys = set(client.keys(f"{prefix}:*"))
    inbox = transport.open_inbox()
    inbox.close()
    transport.reply([(inbox.address, b"x"), ("{topic:0}:log", b"x")])
    (left,) = set(client.keys(f"{prefix}:*")) - keys
    assert 0 < client.ttl(left) <= 600


def test_an_answer_is_received_though_the_clock_of_the_server_was_ahead_before(
    transport: RedisStreamsTransport, client: Any, prefix: str
) -> None:
    """As of a master whose replica lacks the stream, or before the inbox expired."""
    inbox = transport.open_inbox()
    key = f"{prefix}:inbox:{{{inbox.address}}}"
    client.xadd(key, {"b": b"first"}, id="99999999999999-0")
    assert inbox.receive(0) == [b"first"]
    client.delete(key)
    for body in (b"second", b"third"):
        transport.reply([(inbox.address, body)])
        assert inbox.receive(0) == [body]
    assert inbox.receive(0) == []
    inbox.close()


def test_received_answers_are_deleted(client: redis.Redis, prefix: str, transport: RedisStreamsTransport) -> None:
    inbox = transport.open_inbox()
    transport.reply([(inbox.address, b"x")] * 1_500)
    received = 0
    while more := inbox.receive(0):
        received += len(more)
    (key,) = client.keys(f"{prefix}:inbox:*")
    assert received == 1_500
    assert client.xlen(key) == 0


def test_an_inbox_that_nobody_reads_holds_a_bounded_number_of_answers(
    client: Any, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_inbox, "INBOX_ANSWERS", 100)
    inbox = transport.open_inbox()
    transport.reply([(inbox.address, b"x")] * 1_000)
    assert 100 <= client.xlen(Keys(prefix).inbox(inbox.address)) <= 300
    inbox.close()


def test_topic_without_groups_is_cut_to_its_greatest_length(server: Redis, prefix: str) -> None:
    transport = RedisStreamsTransport(server.url, prefix=prefix, max_length=500, timeout=DEADLINE)
    transport.create_topic("topic", 1)
    transport.send("topic", {0: [b"x" * 200] * 2_000})
    transport.trim("topic")
    left = [offset for offset, _ in messages(transport, "topic", 0)]
    assert 500 <= len(left) < 700
    assert left[-1] == 1_999
    transport.close()


def _sent(transport: RedisStreamsTransport, body: bytes) -> int | None:
    try:
        return transport.send("topic", {0: [body]})[0]
    except TransportUnavailable:
        return None


def _someone_waits(client: redis.Redis) -> bool | None:
    return any("b" in other["flags"] for other in client.client_list()) or None
