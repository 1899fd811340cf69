"""Processes that the tests fork from a warm one, `tests.warm`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.meta.tree import ROOT

OWN_MODULE = "import sys, types; own = sys.modules['own'] = types.ModuleType('own'); "
KEEPS_CONNECTIONS = OWN_MODULE + "import multiprocessing; own.kept = [multiprocessing.Pipe() for _ in range(10)]"
ENDS = f"""
import atexit, json
class Ending:
    def __init__(self, name):
        self.name = name
    def __del__(self, print=print):
        print(self.name, "is cleared", flush=True)
{OWN_MODULE}
own.ending, json.ending = Ending("its own module"), Ending("a library")
atexit.register(print, "exit handlers are called")
"""
WRITES = "import time; print('ready'); time.sleep(600)"


def test_a_process_closes_no_file_of_another_object_at_its_end() -> None:
    """Connections that live as long as the interpreter have the numbers of descriptors that the fork has closed."""
    done = warm.run(["-c", KEEPS_CONNECTIONS], cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_clears_at_its_end_what_it_has_imported_for_itself() -> None:
    """It leaves alone what the warm process has imported: to clear that takes longer than many processes live."""
    done = warm.run(["-c", ENDS], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "exit handlers are called\nits own module is cleared\n"


def test_output_is_seen_at_once_whatever_the_environment_of_the_tests_says() -> None:
    """The lines of a process that goes on are waited for. The environment of a terminal has no `PYTHONUNBUFFERED`."""
    starting = f"""
from tests import warm
process = warm.start(["-c", {WRITES!r}], cwd={str(ROOT)!r}, env={{**warm.os.environ, "PYTHONUNBUFFERED": "1"}})
print(process.stdout.readline(), process.poll())
process.kill()
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", starting]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ready\n None\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts are private on Linux only")
@pytest.mark.parametrize("private", [False, True], ids=["the same mounts", "mounts of its own"])
def test_a_process_sees_the_files_of_the_one_that_starts_it(tmp_path: Path, private: bool) -> None:
    """So the server of a parallel run starts nothing for a process with private mounts."""
    place = tmp_path / "place"
    place.mkdir()
    starting = f"""
from tests import warm
print(warm.run(["-c", "import os; print(os.listdir({str(place)!r}))"], cwd=warm.ROOT).stdout, end="")
"""
    mounting = f"mount -t tmpfs none {place} && touch {place}/here && " if private else f"touch {place}/here && "
    unshare = ["unshare", "-rm"] if private else []
    if subprocess.run(["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none {place}"], capture_output=True).returncode:
        pytest.skip("no file system of our own can be mounted here")
    command = [*unshare, "sh", "-c", mounting + '"$@"', "sh", sys.executable, "-c", starting]
    with contextlib.nullcontext() if warm.VARIABLE in os.environ else warm.shared():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['here']\n", "")
