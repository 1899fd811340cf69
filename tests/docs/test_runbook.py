"""The runbook has a section for each alert, and a row for each problem that the status can report."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from enode_django import monitoring
from tests.docs.pages import DOCS
from tests.docs.test_links import anchors

RUNBOOK = DOCS / "howto" / "runbook.md"
ALERTS = DOCS / "deploy" / "prometheus-alerts.yml"
SAID = {"bad", "degraded", "say"}


def test_each_alert_leads_to_its_section() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    sections = re.findall(r"^## (Enode\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules]
    links = [rule["annotations"]["runbook"].partition("#") for rule in rules]
    assert {page for page, _, _ in links} == {RUNBOOK.relative_to(DOCS.parent).as_posix()}
    assert {anchor for _, _, anchor in links} <= anchors(RUNBOOK)


def reasons() -> Iterator[str]:
    """Yield of each problem the longest text in it that is always the same."""
    for path in Path(inspect.getfile(monitoring)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAID:
                texts = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
                yield max((text for text in texts if isinstance(text, str)), key=len, default="")


def test_each_problem_of_the_status_leads_somewhere() -> None:
    text = RUNBOOK.read_text().split("\n## What `enode status` prints\n")[1]
    found = [reason.strip() for reason in reasons() if len(reason) > 4]
    assert len(found) >= 15
    assert [reason for reason in found if reason not in text] == []
