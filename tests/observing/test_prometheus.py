from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enode_django.exceptions import ConfigurationError
from enode_django.processors.probes import METRICS, metrics_page
from enode_django.processors.prometheus import exposition
from enode_django.processors.statistics import Outcomes, Statistics
from tests.docs.pages import DOCS

GRAFANA = DOCS / "deploy" / "grafana-enode.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    statistics = Statistics(clock=lambda: 100.0)
    statistics.gauges["cached_aggregates"] = lambda: 3
    statistics.gauges["unfinished"] = lambda: 4
    statistics.gauges["waiting_for_help"] = lambda: 1
    statistics.count_batch(7, 1, Outcomes(3, 2, 1, 1))
    statistics.count_published(6)
    statistics.measure(store_seconds=0.004, pulled_to_durable=0.02, sent_to_durable=700.0)
    statistics.set_followed('bank."Ledger"\\\n', 5, 1, 90.0)
    workers = {"workers": 2, "event_workers": 1, "planned_workers": 2, "planned_event_workers": 2, "restarts": 9}
    reads = {"ring": 30, "memory": 20, "file": 10}
    queue = {"backlog": {"commands": {"processors": 12}}, "broker_reads": reads, "dead_letters": 2}
    return {**statistics.report(), **workers, **queue, "pids": [1, 2]}


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
        ("enode_subscriber_lag_seconds", 'bank."Ledger"\\\n'): 10,
        ("enode_queue_backlog_messages", "processors", "commands"): 12,
        ("enode_dead_letters",): 2,
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
    assert ("enode_dead_letters",) not in found, "how many there are is not known"


def test_every_metric_of_the_dashboard_exists(figures: dict[str, Any]) -> None:
    names = {name for name, *_ in samples(figures)}
    dashboard = json.loads(GRAFANA.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) >= 10
    used = {name for expression in expressions for name in re.findall(r"\benode_\w+", expression)}
    assert used - names == set()


def test_every_metric_is_documented(figures: dict[str, Any]) -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    families = {family.name for family in text_string_to_metric_families(exposition(figures).decode())}
    documented = {re.sub(r"_total$", "", name) for name in re.findall(r"`(enode_\w+)`", text)}
    assert documented == families


def test_without_the_package_the_option_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "enode_django.processors.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install enode_django\[metrics\]"):
        metrics_page(dict, needed=True)
    assert metrics_page(dict, needed=False) == {}


def test_with_the_package_there_is_a_page(figures: dict[str, Any]) -> None:
    page = metrics_page(lambda: figures, needed=True)[METRICS]()
    assert page.content_type.startswith("text/plain")
    assert b"enode_commands_finished_total 7.0\n" in page.body
