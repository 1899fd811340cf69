"""Check of the Java version for Spark."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from enode_django.exceptions import SparkUnavailable

OLDEST = 17
INSTALL = (
    f"install Java {OLDEST} or newer (on Debian and Ubuntu: apt install openjdk-17-jre-headless), or name its "
    "directory in JAVA_HOME"
)
_VERSION = re.compile(r'version "(\d+)')


def check_java() -> None:
    """Raise `SparkUnavailable` if the Java that Spark would use is missing or too old. Blocks for a moment."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise SparkUnavailable(f"Spark needs Java, and {java!r} cannot be run; {INSTALL}") from error
    said = done.stderr + done.stdout
    version = _VERSION.search(said)
    if version is None:
        raise SparkUnavailable(f"Spark needs Java, and {java!r} gives no version but {said[:200]!r}; {INSTALL}")
    if int(version[1]) < OLDEST:
        raise SparkUnavailable(f"Spark needs Java {OLDEST} or newer, and {java!r} is Java {version[1]}; {INSTALL}")
