"""Processes that the tests fork from a warm one, `tests.warm`."""

from __future__ import annotations

from tests import warm
from tests.meta.tree import ROOT

KEEPS_CONNECTIONS = "import multiprocessing as module; module.kept = [module.Pipe() for _ in range(10)]"


def test_a_process_closes_no_file_of_another_object_at_its_end() -> None:
    """Connections that live as long as the interpreter have the numbers of descriptors that the fork has closed."""
    done = warm.run(["-c", KEEPS_CONNECTIONS], cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
