"""Python imports this module at the start of a process under test, whose ``PYTHONPATH`` has the directory."""

from __future__ import annotations

import os
from pathlib import Path

if path := os.environ.get("CHAOS_DIALS"):
    from chaos.dials import Dials
    from chaos.turning import slow_disk, step_clock

    _dials = Dials(Path(path))
    step_clock(_dials)
    slow_disk(_dials)
