"""The command line selects worlds, and the faults that they can have."""

from __future__ import annotations

import pytest

from chaos.__main__ import command_of, parse, rounds_of, worlds_of
from chaos.faults import KINDS
from chaos.faults.disks import FullDisk
from chaos.names import BROKER, CLUSTER, REDIS
from chaos.servers import can_mount


def test_a_run_takes_turns_with_the_broker_and_redis() -> None:
    options = parse(["--seed", "3", "--minutes", "8"])
    worlds = [round_.setup[:2] for round_ in rounds_of(options)]
    assert worlds[0] == (BROKER, 1)
    assert sorted(worlds) == [(BROKER, 1), (BROKER, 2), (REDIS, 1), (REDIS, 2)]


def test_dead_nodes_bring_a_cluster_along() -> None:
    assert {transport for transport, _ in worlds_of(parse([]))} == {BROKER, REDIS}
    with_dead = parse(["--with", "dead-cluster-node", "--shards", "1"])
    assert worlds_of(with_dead) == [(BROKER, 1), (REDIS, 1), (CLUSTER, 1)]
    assert worlds_of(parse(["--transport", CLUSTER, "--shards", "2"])) == [(CLUSTER, 2)]


def test_masters_of_a_cluster_die_unless_that_is_switched_off() -> None:
    assert "dead-cluster-node" in {
        fault.kind for fault in next(rounds_of(parse(["--seed", "3", "--transport", CLUSTER]))).plan()
    }
    quiet = next(rounds_of(parse(["--seed", "3", "--transport", CLUSTER, "--without", "dead-cluster-node"])))
    assert "dead-cluster-node" not in {fault.kind for fault in quiet.plan()}
    options = parse(["--seed", "3", "--transport", CLUSTER, "--without", "all", "--with", "dead-cluster-node"])
    deadly = next(rounds_of(options))
    assert {fault.kind for fault in deadly.plan()} == {"dead-cluster-node"}
    assert "--transport redis-cluster --shards 1 --with dead-cluster-node" in command_of(options, deadly)


@pytest.mark.parametrize("arguments", [["--transport", "redis"], ["--transport", "broker", "--shards", "2"]])
def test_a_fault_that_no_world_can_have_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*arguments, "--with", "dead-cluster-node"])
    assert "dead-cluster-node" in capsys.readouterr().err
    assert parse([*arguments, "--with", "all"]).more == ["all"]


def test_every_kind_has_a_world() -> None:
    possible = [name for name in KINDS if name != FullDisk.name or can_mount()]
    parse([word for name in possible for word in ("--with", name)])
