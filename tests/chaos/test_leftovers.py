"""A chaos run that is broken off leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.processes import PROJECT
from chaos.waiting import wait_until
from sample_project.embedded_guard import processes_working_in

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

UNDER_WAY = "clients are under way"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for temporary files that every account may enter, with a short name: sockets lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-")).resolve()
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_run_that_is_broken_off_leaves_no_process_behind(place: Path, number: signal.Signals) -> None:
    output = place / "output"
    arguments = ["--minutes", "2", "--seed", "7", "--transport", "broker", "--shards", "1"]
    with output.open("wb") as file:
        run = subprocess.Popen(
            [sys.executable, "-m", "chaos", *arguments],
            cwd=PROJECT,
            env={**os.environ, "TMPDIR": str(place)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        wait_until(lambda: UNDER_WAY in output.read_text() or run.poll() is not None, output.read_text, 300)
        assert run.poll() is None, output.read_text()
        assert len(processes_working_in(place)) > 10
        run.send_signal(number)
        status = run.wait(240)
    finally:
        run.kill()
    assert status == (130 if number is signal.SIGINT else -number), output.read_text()
    wait_until(lambda: not processes_working_in(place), lambda: f"{processes_working_in(place)} end", 60)
    if number is signal.SIGINT:
        assert [path.name for path in place.iterdir()] == ["output"]
