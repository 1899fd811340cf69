"""Processes join an `enodedev` by its environment, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from enode_django.development.joining import ADDRESS
from enode_django.development.parts import Part, Plan
from tests.acceptance.waiting import wait_until

JOINS = f"""
import os, subprocess, sys, threading, time
import django
from django.conf import settings
settings.configure()
django.setup()
from enode_django.development.joining import join
join(os.environ[{ADDRESS!r}])
lifelines = [thread for thread in threading.enumerate() if thread.name == "enode-lifeline"]
"""
OTHER = f"{JOINS}\nfor thread in lifelines: thread.join()\nprint('lives', len(lifelines))"
PART = f"""{JOINS}
print("lifelines", len(lifelines), flush=True)
done = subprocess.run([sys.executable, "-c", {OTHER!r}], stdin=subprocess.DEVNULL, capture_output=True, text=True)
print("child", done.returncode, done.stdout, flush=True)
time.sleep(600)
"""


def test_a_part_ends_with_enodedev_and_what_it_runs_itself_with_another_input_does_not(tmp_path: Path) -> None:
    part = Part(Plan("web", [sys.executable, "-c", PART]), {ADDRESS: str(tmp_path / "steps")}, 0.0)
    try:
        said: list[str] = []

        def says(text: str) -> bool:
            said.extend(part.lines())
            return text in said

        wait_until(lambda: says("lifelines 1") and says("child 0 lives 0"), "a child that goes on", 60)
        part.lifeline.close()
        wait_until(lambda: part.status is not None, "the end of the part", 60)
    finally:
        part.close()


def test_what_joins_does_not_look_for_garbage_when_it_ends(tmp_path: Path) -> None:
    script = f"import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000)){JOINS}"
    environment = {**os.environ, ADDRESS: str(tmp_path / "steps")}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "frozen True\n"
