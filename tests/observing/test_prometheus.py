from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from enode_django.equeue.histograms import SECONDS, Histogram
from enode_django.exceptions import ConfigurationError
from enode_django.monitoring.probes import METRICS, metrics_page
from enode_django.monitoring.prometheus import exposition
from enode_django.processors.statistics import OutcomeCounts, Statistics
from tests.docs.pages import DOCS

ALERTS = DOCS / "deploy" / "prometheus-alerts.yml"
GRAFANA = DOCS / "deploy" / "grafana-enode.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    statistics = Statistics(clock=lambda: 100.0)
    statistics.gauges["cached_aggregates"] = lambda: 3
    statistics.gauges["unfinished"] = lambda: 4
    statistics.gauges["waiting_for_help"] = lambda: 1
    statistics.count_batch(7, 1, OutcomeCounts(3, 2, 2, 1, 1))
    statistics.count_published(6)
    statistics.measure(store_seconds=0.004, pulled_to_durable=0.02, sent_to_durable=700.0)
    statistics.set_subscriber('bank."Ledger"\\\n', 5, 1, 90.0)
    workers = {"workers": 2, "event_workers": 1, "planned_workers": 2, "planned_event_workers": 2, "restarts": 9}
    reads = {"ring": 30, "memory": 20, "file": 10}
    queue = {"backlog": {"commands": {"processors": 12}}, "broker_reads": reads}
    gauges = {
        "dead_letters": {"processors": 2, "billing": 0},
        "parked_aggregates": {'bank."Ledger"\\\n': 7},
        "outbox_commands": {"default": 3},
        "outbox_age": {"default": 1.5},
        "outbox_rejected": {"default": 1},
        "subscriber_lags": {'bank."Ledger"\\\n': 12.5},
    }
    return {**statistics.report(), **workers, **queue, **gauges, "pids": [1, 2]}


@pytest.fixture(scope="module")
def of_broker() -> dict[str, Any]:
    """The figures of a broker as `Measuring.figures` returns them."""
    times = Histogram(SECONDS)
    times.add(0.003)
    numbers = ("free_bytes", "stored_bytes", "unflushed_bytes", "since_checkpoint_bytes", "held_bytes", "ring_batches")
    more = ("ring_bytes", "damaged_batches", "waiting_pulls", "waiting_inboxes", "measured_at", "deleted_early")
    return {
        **dict.fromkeys((*numbers, *more), 7),
        "uses_reserve": True,
        "reads": {"ring": 3, "memory": 2, "file": 1},
        "fsync_seconds": times.as_map(),
        "loop_delay_seconds": times.as_map(),
        "topics": {"orders": {"messages": 9, "bytes": 100}},
        "groups": [["orders", "billing", 5, [[0, 4, 1.5], [1, 2, None]]]],
        "connections": {"10.0.0.1": 3},
    }


@pytest.fixture(scope="module")
def all_names(figures: dict[str, Any], of_broker: dict[str, Any]) -> set[str]:
    return {name for name, *_ in samples({**figures, "broker": of_broker})}


def samples(figures: dict[str, Any]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(exposition(figures).decode())
        for sample in family.samples
    }


def test_figures_become_metrics(figures: dict[str, Any]) -> None:
    found = samples(figures)
    expected = {
        ("enode_commands_finished_total",): 7,
        ("enode_commands_total", "succeeded"): 3,
        ("enode_commands_total", "unchanged"): 2,
        ("enode_commands_total", "refused"): 2,
        ("enode_commands_total", "failed"): 1,
        ("enode_commands_total", "crashed"): 1,
        ("enode_commands_published_total",): 6,
        ("enode_conflicts_total",): 1,
        ("enode_worker_restarts_total",): 9,
        ("enode_cached_aggregates",): 3,
        ("enode_unfinished_commands",): 4,
        ("enode_mailboxes_waiting_for_help",): 1,
        ("enode_batch_commands_bucket", "5"): 0,
        ("enode_batch_commands_bucket", "10"): 1,
        ("enode_batch_commands_sum",): 7,
        ("enode_store_seconds_count",): 1,
        ("enode_command_latency_seconds_bucket", "0.025", "pulled"): 1,
        ("enode_command_latency_seconds_bucket", "60", "sent"): 0,
        ("enode_command_latency_seconds_bucket", "+Inf", "sent"): 1,
        ("enode_streams_handled_total", 'bank."Ledger"\\\n'): 5,
        ("enode_aggregates_parked_total", 'bank."Ledger"\\\n'): 1,
        ("enode_parked_aggregates", 'bank."Ledger"\\\n'): 7,
        ("enode_subscriber_lag_seconds", 'bank."Ledger"\\\n'): 12.5,
        ("enode_queue_backlog_messages", "processors", "commands"): 12,
        ("enode_dead_letters", "processors"): 2,
        ("enode_dead_letters", "billing"): 0,
        ("enode_outbox_commands", "default"): 3,
        ("enode_outbox_age_seconds", "default"): 1.5,
        ("enode_outbox_rejected", "default"): 1,
        ("enode_broker_reads_total", "ring"): 30,
        ("enode_broker_reads_total", "memory"): 20,
        ("enode_broker_reads_total", "file"): 10,
        ("enode_workers", "event"): 1,
        ("enode_workers_planned", "event"): 2,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_before_the_first_report_there_are_no_metrics() -> None:
    assert exposition({}) == b""


def test_a_supervisor_whose_workers_have_not_said_anything_yet_has_metrics() -> None:
    found = samples({"workers": 0, "planned_workers": 2})
    assert found[("enode_workers_planned", "command")] == 2
    assert not [name for name, *_ in found if name == "enode_dead_letters"], "how many there are is not known"


def test_figures_of_a_broker_become_metrics_beside_others_or_alone(
    figures: dict[str, Any], of_broker: dict[str, Any]
) -> None:
    expected = {
        ("enode_broker_messages_total", "orders"): 9,
        ("enode_broker_bytes_total", "orders"): 100,
        ("enode_broker_committed_messages_total", "billing", "orders"): 5,
        ("enode_broker_backlog_messages", "billing", "0", "orders"): 4,
        ("enode_broker_backlog_messages", "billing", "1", "orders"): 2,
        ("enode_broker_backlog_age_seconds", "billing", "0", "orders"): 1.5,
        ("enode_broker_backlog_age_seconds", "billing", "1", "orders"): None,
        ("enode_broker_fsync_seconds_bucket", "0.0025"): 0,
        ("enode_broker_fsync_seconds_bucket", "0.005"): 1,
        ("enode_broker_loop_delay_seconds_count",): 1,
        ("enode_broker_connections", "10.0.0.1"): 3,
        ("enode_broker_uses_reserve",): 1,
        ("enode_broker_deleted_early_total",): 7,
    }
    alone, beside = samples({"broker": of_broker}), samples({**figures, "broker": of_broker})
    assert {key: alone.get(key) for key in expected} == {key: beside.get(key) for key in expected} == expected
    assert (alone["enode_broker_reads_total", "ring"], beside["enode_broker_reads_total", "ring"]) == (3, 30)
    assert ("enode_workers", "command") not in alone


def test_every_metric_of_the_alerts_exists(all_names: set[str]) -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [set(group) for group in groups] == [{"name", "rules"}] * len(groups)
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        used = re.findall(r"\benode_\w+", rule["expr"])
        assert used
        assert set(used) - all_names == set()
        assert [rule["expr"].count(left) - rule["expr"].count(right) for left, right in ("()", "[]", "{}")] == [0, 0, 0]
        labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
        assert grouped is None or labels <= set(re.split(r",\s*", grouped[1])), "a label that the sum has not kept"


def test_every_metric_of_the_dashboard_exists(all_names: set[str]) -> None:
    dashboard = json.loads(GRAFANA.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) >= 10
    used = {name for expression in expressions for name in re.findall(r"\benode_\w+", expression)}
    assert used - all_names == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_metric_is_documented(figures: dict[str, Any], of_broker: dict[str, Any]) -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    text = exposition({**figures, "broker": of_broker})
    families = {family.name for family in text_string_to_metric_families(text.decode())}
    documented = {re.sub(r"_total$", "", name) for name in re.findall(r"`(enode_\w+)`", page)}
    assert documented == families


def test_without_the_package_the_option_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "enode_django.monitoring.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install \"enode_django\[metrics\]\""):
        metrics_page(dict, needed=True)
    assert metrics_page(dict, needed=False) == {}


def test_with_the_package_there_is_a_page(figures: dict[str, Any]) -> None:
    page = metrics_page(lambda: figures, needed=True)[METRICS]()
    assert page.content_type.startswith("text/plain")
    assert b"enode_commands_finished_total 7.0\n" in page.body
