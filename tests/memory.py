"""The directory in memory for what tests write most, above all servers of PostgreSQL.

A file system keeps a new file's number apart from those that were deleted a moment ago, and looks for it among them:
with the files of a database that is emptied after each test, this took a tenth of all processor time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ENOUGH = (1 + 1.5 * (os.cpu_count() or 1)) * 1024**3
"""The free bytes that it must have: a server takes 80 to 350 MB. Each process of a run has one, three a core, and some
tests have others. A container often has 64 MB only."""
_DIRECTORY = Path("/dev/shm")

MEMORY = str(_DIRECTORY) if _DIRECTORY.is_dir() and shutil.disk_usage(_DIRECTORY).free >= ENOUGH else None
"""Its path, for ``dir=`` of the module `tempfile`; None stands for the system's temporary directory."""
