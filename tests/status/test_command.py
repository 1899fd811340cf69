"""``manage.py enode status``: for people, and for probes."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from tests.status.conftest import Configure, broker_at
from tests.status.reports import JUST_NOW, figures, write_report

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("landed")]

PATIENTLY = ("--timeout", "60")


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("enode", "status", *PATIENTLY, *arguments, stdout=out, no_color=True)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_its_exit_status_is_the_worst_of_what_was_asked_for(configure: Configure) -> None:
    configure()
    assert run("--only", "database,queue")[0] == 0
    assert run("--only", "processors")[0] == 2
    write_report("a", JUST_NOW, figures(1, workers=1), lived=10)
    assert run("--only", "database,processors")[0] == 1


def test_it_shows_a_table_of_each_part_and_what_is_wrong(configure: Configure) -> None:
    configure()
    write_report("enode-host-17", JUST_NOW, figures(1, workers=1), lived=10)
    _, shown = run()
    assert "database: ok" in shown
    assert "processors: degraded\n  1 of 2 command workers of enode-host-17 live\nsupervisor     host  pid" in shown
    assert shown.endswith("all in all: degraded\n")


def test_the_same_as_json(configure: Configure) -> None:
    configure()
    write_report("a", JUST_NOW, figures(1), lived=10)
    code, text = run("--json", "--only", "queue,processors")
    status: dict[str, Any] = json.loads(text)
    assert (code, status["health"], list(status["parts"])) == (0, "ok", ["queue", "processors"])
    (row,) = status["parts"]["processors"]["rows"]
    assert (row["supervisor"], row["workers"]) == ("a", "2/2")


def test_it_does_not_wait_longer_than_it_is_told_to(configure: Configure, silent_port: int) -> None:
    configure(QUEUE={**broker_at(silent_port), "OPTIONS": {"timeout": 1.0}})
    code, shown = run("--only", "queue", "--timeout", "0.2")
    assert code == 2
    assert "queue gave no answer within 0.2 s" in shown


@pytest.mark.parametrize("wrong", [("--only", "brokers"), ("--timeout", "0"), ("--timeout", "nan"), ("--timeout", "x")])
def test_wrong_options_are_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=f"'{wrong[1]}'"):
        run(*wrong)


@override_settings(ENODE={"REPORTS": 5})
def test_settings_that_make_no_sense_are_bad_and_not_degraded() -> None:
    with pytest.raises(CommandError, match="must be a dictionary") as raised:
        run()
    assert raised.value.returncode == 2
