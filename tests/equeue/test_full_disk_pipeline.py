"""A full disk stops only senders, and has room again when consumers have consumed. Tests use a small file system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.meta.tree import ROOT

SIZE = 3_000_000


def run(tmp_path: Path, scenario: str) -> dict[str, Any]:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size={SIZE} none {small} && "
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"], capture_output=True).returncode:
        pytest.skip("no file system of our own can be mounted here")
    program = [sys.executable, "-m", "tests.equeue.full_disk_pipeline", scenario, str(small)]
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount + '"$@"', "sh", *program], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return told


def test_a_disk_full_of_messages_clears_itself_when_they_are_consumed(tmp_path: Path) -> None:
    told = run(tmp_path, "messages")
    log = told.pop("log")
    assert 100 < told.pop("stopped_at") < SIZE // 10_000
    assert told.pop("deleted_early") >= 3, "more was sent than the disk takes"
    assert told == {"in_order": True, "damaged": 0, "ended": 0}
    assert "room is short on the broker's disk" in log
    assert "there is room on the broker's disk again" in log
    assert "files of consumed messages before their time" in log
    assert "Traceback" not in log


def test_commits_and_leases_go_on_while_another_program_has_filled_the_disk(tmp_path: Path) -> None:
    assert run(tmp_path, "else") == {
        "epochs": [0, 1, 2, 3, 4],
        "commit_refused": [],
        "joined": [0],
        "sent_again": True,
        "after_a_crash": 11,
    }
