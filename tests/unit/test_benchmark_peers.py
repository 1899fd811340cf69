"""The virtualenvs of the benchmarks' peers, and ratios that no bar is set for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import figures, peer_environments
from benchmarks.peer_environments import PeerEnvironment

PEER = PeerEnvironment("some-peer", "some-peer==1.0", (3, 0))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(peer_environments, "HOME", tmp_path)
    monkeypatch.setenv("PEER_PYTHON", "no-such-python")
    return tmp_path


def test_a_peer_that_needs_a_newer_python_is_left_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert PeerEnvironment("some-peer", "some-peer==1.0", (9, 9)).python() is None
    assert "some-peer==1.0 is left out: it needs Python 9.9" in capsys.readouterr().out
    assert list(home.iterdir()) == []


def test_a_peer_that_cannot_be_installed_is_left_out_and_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def run(command: list[str]) -> None:
        commands.append(command)
        if "pip" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(peer_environments, "_run", run)
    assert (PEER.python(), PEER.python()) == (None, None)
    assert capsys.readouterr().out.count("some-peer==1.0 is left out: it cannot be installed") == 2
    assert [command[-1] for command in commands] == [str(home / "some-peer"), "some-peer==1.0"] * 2


def test_a_peer_is_installed_once_for_each_version(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        (home / "some-peer").mkdir(exist_ok=True)

    monkeypatch.setattr(peer_environments, "_run", run)
    assert PEER.python() == PEER.python() == home / "some-peer" / "bin" / "python"
    assert len(commands) == 2
    PeerEnvironment("some-peer", "some-peer==1.1", (3, 0)).python()
    assert len(commands) == 4


def test_a_ratio_without_a_bar_is_given_for_information(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "BARS", (figures.Bar("ours / theirs", ["ours", "theirs"], lambda a, b: a / b),))
    measured = [figures.Figure("ours", 6.0, "x/s"), figures.Figure("theirs", 2.0, "x/s")]
    assert figures.judged(measured) == [{"name": "ours / theirs", "ratio": 3.0, "bar": "", "verdict": ""}]
    assert figures.table(measured).splitlines()[-1].split() == ["ours", "/", "theirs", "3.00"]
