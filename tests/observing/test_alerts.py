"""Each alert fires when it should, and has a section in the runbook. promtool evaluates the rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import DOCS

ALERTS = DOCS / "deploy" / "prometheus-alerts.yml"
RUNBOOK = DOCS / "howto" / "runbook.md"
MINUTES = 60

ON, ROLE = 'instance="a:9464"', 'instance="a:9464",role="command"'
SUBSCRIBER, GROUP = 'subscriber="bank.Ledger"', 'group="billing",topic="orders"'
ONLY_GROUP, DATABASE = 'group="billing"', 'database="default"'
Case = tuple[dict[str, str], str]
FIRES: dict[str, Case] = {  # the series as promtool writes them, and the labels of the alert
    "EnodeNothingRuns": ({}, ""),
    "EnodeDatabaseAway": ({f"enode_workers{{{ROLE}}}": "2x60", f"enode_queue_backlog_messages{{{GROUP}}}": "0x60"}, ""),
    "EnodeQueueAway": ({f"enode_workers{{{ROLE}}}": "2x60", f"enode_dead_letters{{{ONLY_GROUP}}}": "0x60"}, ""),
    "EnodeSubscriberBehind": ({f"enode_subscriber_lag_seconds{{{SUBSCRIBER}}}": "120x60"}, SUBSCRIBER),
    "EnodeCommandsCrash": ({f'enode_commands_total{{{ON},outcome="crashed"}}': "0+1x60"}, ""),
    "EnodeDeadLetters": ({f"enode_dead_letters{{{ONLY_GROUP}}}": "17x60"}, ONLY_GROUP),
    "EnodeOutboxWaits": ({f"enode_outbox_age_seconds{{{DATABASE}}}": "120x60"}, DATABASE),
    "EnodeOutboxRejects": ({f"enode_outbox_rejected{{{DATABASE}}}": "2x60"}, DATABASE),
    "EnodeAggregatesParked": ({f"enode_parked_aggregates{{{SUBSCRIBER}}}": "7x60"}, SUBSCRIBER),
    "EnodeWorkersMissing": (
        {f"enode_workers{{{ROLE}}}": "1x60", f"enode_workers_planned{{{ROLE}}}": "2x60"},
        ROLE,
    ),
    "EnodeWorkersDie": ({f"enode_worker_restarts_total{{{ON}}}": "0+1x60"}, ON),
    "EnodeMailboxesWaitForHelp": ({f"enode_mailboxes_waiting_for_help{{{ON}}}": "1x60"}, ON),
    "EnodeQueueBacklog": ({f"enode_queue_backlog_messages{{{GROUP}}}": "200000x60"}, GROUP),
    "EnodeBrokerSilent": ({f"enode_broker_measured_timestamp_seconds{{{ON}}}": "0x60"}, ON),
    "EnodeBrokerGroupBehind": ({f'enode_broker_backlog_age_seconds{{{GROUP},queue="0"}}': "600x60"}, GROUP),
    "EnodeBrokerDiskFull": ({f"enode_broker_uses_reserve{{{ON}}}": "1x60"}, ON),
    "EnodeBrokerDiskFillsUp": ({f"enode_broker_free_bytes{{{ON}}}": "1000000-10000x60"}, ON),
    "EnodeBrokerDeletesEarly": ({f"enode_broker_deleted_early_total{{{ON}}}": "0+1x60"}, ON),
    "EnodeBrokerSlowDisk": (
        {
            f'enode_broker_fsync_seconds_bucket{{{ON},le="1"}}': "0x60",
            f'enode_broker_fsync_seconds_bucket{{{ON},le="5"}}': "0+9x60",
            f'enode_broker_fsync_seconds_bucket{{{ON},le="+Inf"}}': "0+9x60",
        },
        ON,
    ),
    "EnodeBrokerLoopLate": (
        {
            f'enode_broker_loop_delay_seconds_bucket{{{ON},le="0.5"}}': "0x60",
            f'enode_broker_loop_delay_seconds_bucket{{{ON},le="1"}}': "0+9x60",
            f'enode_broker_loop_delay_seconds_bucket{{{ON},le="+Inf"}}': "0+9x60",
        },
        ON,
    ),
    "EnodeBrokerDamage": ({f"enode_broker_damaged_batches{{{ON}}}": "1x60"}, ON),
}
WELL = {
    f"enode_workers{{{ROLE}}}": "2x60",
    f"enode_workers_planned{{{ROLE}}}": "2x60",
    f"enode_subscriber_lag_seconds{{{SUBSCRIBER}}}": "1x60",
    f'enode_commands_total{{{ON},outcome="crashed"}}': "3x60",
    f'enode_commands_total{{{ON},outcome="succeeded"}}': "0+900x60",
    f"enode_dead_letters{{{ONLY_GROUP}}}": "0x60",
    f"enode_outbox_age_seconds{{{DATABASE}}}": "1x60",
    f"enode_outbox_rejected{{{DATABASE}}}": "0x60",
    f"enode_parked_aggregates{{{SUBSCRIBER}}}": "0x60",
    f"enode_worker_restarts_total{{{ON}}}": "9x60",
    f"enode_mailboxes_waiting_for_help{{{ON}}}": "0x60",
    f"enode_queue_backlog_messages{{{GROUP}}}": "900x60",
    f"enode_broker_measured_timestamp_seconds{{{ON}}}": "0+60x60",
    f'enode_broker_backlog_age_seconds{{{GROUP},queue="0"}}': "5x60",
    f"enode_broker_uses_reserve{{{ON}}}": "0x60",
    f"enode_broker_free_bytes{{{ON}}}": "1000000x60",
    f"enode_broker_deleted_early_total{{{ON}}}": "4x60",
    f'enode_broker_fsync_seconds_bucket{{{ON},le="1"}}': "0+9x60",
    f'enode_broker_fsync_seconds_bucket{{{ON},le="+Inf"}}': "0+9x60",
    f'enode_broker_loop_delay_seconds_bucket{{{ON},le="0.5"}}': "0+9x60",
    f'enode_broker_loop_delay_seconds_bucket{{{ON},le="+Inf"}}': "0+9x60",
    f"enode_broker_damaged_batches{{{ON}}}": "0x60",
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        if os.environ.get("ENODE_REQUIRE_SERVICES") == "1":
            pytest.fail("there is no promtool; run make promtool")
        pytest.skip("there is no promtool; run make promtool")
    return found


@pytest.fixture(scope="module")
def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def firing(name: str) -> str:
    return f'ALERTS{{alertname=~"{name}",alertstate="firing"}}'


def case(series: dict[str, str], name: str, expected: list[str]) -> dict[str, Any]:
    samples = [{"labels": labels, "value": 1} for labels in expected]
    query = {"expr": firing(name), "eval_time": f"{MINUTES}m", "exp_samples": samples}
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": inputs, "promql_expr_test": [query]}


def test_each_alert_fires_and_none_does_while_all_is_well(
    promtool: str, rules: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert set(FIRES) == set(rules)
    tests = [case(WELL, ".+", [])]
    for name, (series, labels) in FIRES.items():
        severity = rules[name]["labels"]["severity"]
        told = f'alertname="{name}",alertstate="firing",severity="{severity}"'
        tests.append(case(series, name, [f"ALERTS{{{told}{',' if labels else ''}{labels}}}"]))
    file = tmp_path / "alerts.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
