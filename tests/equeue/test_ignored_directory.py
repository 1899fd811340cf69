"""The broker's directory is ignored by Git, so that messages do not get into a project's repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.equeue.storing import opened


def untracked(repository: Path) -> list[str]:
    done = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"], cwd=repository, capture_output=True, check=True
    )
    return done.stdout.decode().splitlines()


def open_and_close(directory: Path) -> None:
    store, _ = opened(directory)
    store.close(b"")


def test_git_ignores_the_directory_that_a_broker_makes(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    open_and_close(tmp_path / "var" / "broker")
    assert (tmp_path / "var" / "broker" / "lock").exists()
    assert untracked(tmp_path) == []


def test_a_directory_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    """The directory may be the project's own."""
    open_and_close(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_what_its_owner_has_written_stays(tmp_path: Path) -> None:
    open_and_close(tmp_path / "broker")
    (tmp_path / "broker" / ".gitignore").write_text("# mine")
    open_and_close(tmp_path / "broker")
    assert (tmp_path / "broker" / ".gitignore").read_text() == "# mine"
