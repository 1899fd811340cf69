from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults import ALL, KINDS, switched_on
from chaos.names import BEAT, BROKER, CELERY, CLUSTER, HOSTS, NODES, REDIS, TRANSPORTS, Setup
from chaos.plan import CALM, LONGEST_WAVE, SHORTEST_WAVE, Choice, PlannedFault, make_plan

SEEDS = st.integers(0, 2**32)
SECONDS = st.floats(0, 600)
CHOICES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.builds(
        lambda targets, shortest, more, weight: Choice(targets, shortest, shortest + more, weight),
        st.lists(st.sampled_from(["one", "two", "three", "four"]), unique=True, max_size=4),
        st.floats(0, 15),
        st.floats(0, 15),
        st.floats(0.1, 4),
    ),
    max_size=8,
)
EVERYTHING = {
    name: kind.choice(Setup("broker", 2)) for name, kind in KINDS.items() if kind.choice(Setup("broker", 2)).targets
}


@given(SEEDS, SECONDS, CHOICES)
def test_the_same_seed_makes_the_same_plan(seed: int, seconds: float, choices: dict[str, Choice]) -> None:
    turned_round = dict(reversed(choices.items()))
    assert make_plan(seed, seconds, choices) == make_plan(seed, seconds, turned_round)


@given(SEEDS, SECONDS, CHOICES)
def test_a_plan_has_nothing_but_the_choices_and_is_over_in_time(
    seed: int, seconds: float, choices: dict[str, Choice]
) -> None:
    for fault in make_plan(seed, seconds, choices):
        choice = choices[fault.kind]
        assert fault.target in choice.targets
        assert choice.shortest <= fault.seconds <= choice.longest
        assert 0 <= fault.at <= fault.end <= seconds - CALM + 1e-6
        assert 0 <= fault.share < 1


@given(SEEDS, SECONDS, CHOICES)
def test_no_target_has_two_faults_at_once(seed: int, seconds: float, choices: dict[str, Choice]) -> None:
    assert_targets_take_turns(make_plan(seed, seconds, choices))


def assert_targets_take_turns(plan: Sequence[PlannedFault]) -> None:
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    for one, other in combinations(plan, 2):
        assert one.target != other.target or one.end <= other.at


@given(SEEDS, st.floats(SHORTEST_WAVE + CALM, 600))
def test_a_wave_of_faults_is_followed_by_a_calm(seed: int, seconds: float) -> None:
    plan = make_plan(seed, seconds, EVERYTHING)
    assert plan
    over = 0.0
    wave_began = 0.0
    for fault in plan:
        if fault.at >= over + CALM:
            wave_began = fault.at
        over = max(over, fault.end)
        assert over - wave_began <= LONGEST_WAVE


@given(SEEDS)
def test_long_plans_have_every_kind(seed: int) -> None:
    assert {fault.kind for fault in make_plan(seed, 300, EVERYTHING)} == EVERYTHING.keys()


@given(SEEDS, st.floats(SHORTEST_WAVE + CALM, 600))
def test_every_round_has_a_rebuild_about_halfway(seed: int, seconds: float) -> None:
    nearest = min(
        abs(fault.at - seconds / 2) for fault in make_plan(seed, seconds, EVERYTHING) if fault.kind == "rebuild"
    )
    assert nearest <= CALM


@given(SEEDS, SECONDS, CHOICES, st.floats(0, SHORTEST_WAVE), st.floats(0, 30))
def test_a_kind_for_halfway_is_there_once_for_certain(
    seed: int, seconds: float, choices: dict[str, Choice], shortest: float, more: float
) -> None:
    plan = make_plan(seed, seconds, {**choices, "g": Choice(["one", "g"], shortest, shortest + more, halfway=True)})
    kinds = [fault.kind for fault in plan]
    assert ("g" in kinds) == (seconds >= SHORTEST_WAVE + CALM)
    assert shortest <= min((fault.seconds for fault in plan if fault.kind == "g"), default=shortest)
    assert_targets_take_turns(plan)


def test_a_rebuild_that_is_switched_off_comes_at_no_time() -> None:
    without = {name: choice for name, choice in EVERYTHING.items() if name != "rebuild"}
    assert "rebuild" not in {fault.kind for seed in range(20) for fault in make_plan(seed, 75, without)}


def test_another_seed_makes_another_plan() -> None:
    plans = [make_plan(seed, 100, EVERYTHING) for seed in range(20)]
    assert all(one != other for one, other in combinations(plans, 2))


def test_a_plan_without_time_or_choices_is_empty() -> None:
    assert make_plan(1, SHORTEST_WAVE, EVERYTHING) == []
    assert make_plan(1, 100, {}) == []
    assert make_plan(1, 100, {"nowhere": Choice([])}) == []


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("shards", [1, 2])
def test_every_kind_names_targets_that_its_world_has(transport: str, shards: int) -> None:
    known = {"postgres 0", "postgres 1"} if shards == 2 else {"postgres 0"}
    for kind in KINDS.values():
        targets = kind.targets(Setup(transport, shards))
        assert len(targets) == len(set(targets))
        assert {target for target in targets if target.startswith("postgres")} <= known
        assert transport == "broker" or not any("broker" in target for target in targets)
        assert 0 <= kind.shortest <= kind.longest or (kind.shortest, kind.longest) == (0, 0)


@pytest.mark.parametrize("kind", ["kill-group", "pause-group"])
def test_celery_and_its_beat_are_targets(kind: str) -> None:
    assert {*HOSTS, CELERY, BEAT} == {*KINDS[kind].targets(Setup(BROKER, 1))}


def test_connections_to_a_cluster_are_those_to_its_nodes() -> None:
    assert KINDS["cut-connections"].targets(Setup(CLUSTER, 1)) == [f"way {node}" for node in NODES]
    assert KINDS["dead-cluster-node"].targets(Setup(CLUSTER, 1)) == [*NODES]
    assert KINDS["dead-cluster-node"].targets(Setup(REDIS, 1)) == []


def test_switches_add_and_take_away_kinds() -> None:
    usual = switched_on()
    assert usual == switched_on([ALL]) == KINDS.keys()
    assert switched_on(less=["kill-worker"]) == usual - {"kill-worker"}
    assert switched_on(["add-queues"], [ALL]) == {"add-queues"}
    assert switched_on(less=[ALL]) == frozenset()


def test_a_fault_knows_its_end() -> None:
    assert PlannedFault(1.5, "kill-worker", "first/event", 2.0, 0.5, 7).end == 3.5
