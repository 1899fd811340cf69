"""A directory that the broker cannot use: a mistake in the settings, or in who owns a volume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enode_django.exceptions import ConfigurationError
from tests.equeue.storing import opened


@pytest.mark.parametrize("below", ["", "broker"])
def test_a_file_instead_of_a_directory_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot use the directory '.*/file.*/file' is a file; name another"):
        opened(tmp_path / "file" / below)


def test_a_directory_that_the_user_may_not_write_to_is_told(tmp_path: Path) -> None:
    for one in (tmp_path, *tmp_path.parents[:2]):  # pytest makes them private
        one.chmod(0o755)
    directory = tmp_path / "broker"
    directory.mkdir(0o555)
    program = (
        "import os, sys; from pathlib import Path; from enode_django.equeue.broker.store import MessageStore\n"
        "if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"
        "MessageStore(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, directory], capture_output=True, text=True)
    assert "ConfigurationError: the broker cannot use the directory" in done.stderr
