"""Python processes that start fast: forked from one that has imported the libraries, and nothing of a project.

``run(["-m", "django", "check"], cwd=…, env=…)`` does what `subprocess.run` does with a new interpreter. Settings, apps
and models are loaded by each process for itself. Code that depends on a new interpreter (``PYTHONHASHSEED``, the
imported modules) needs `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from enode_django.processes.children import PRELOADED

ROOT = Path(__file__).parent.parent
LIBRARIES = [
    *PRELOADED,
    *("asgiref.sync", "celery.schedules", "celery.worker", "crontab", "cron_descriptor", "docutils.parsers.rst.states"),
    *("django.contrib.admin.options", "django.contrib.admin.sites", "django.contrib.admin.widgets"),
    *("django.contrib.auth.hashers", "django.contrib.auth.tokens", "django.contrib.messages.middleware"),
    *("django.contrib.postgres.indexes", "django.contrib.sessions.middleware", "django.contrib.staticfiles.finders"),
    *("django.core.management.commands.check", "django.core.management.commands.makemigrations"),
    *("django.core.management.commands.migrate", "django.core.management.commands.test", "django.middleware.common"),
    *("django.middleware.security", "django.test.runner", "django.utils.translation.reloader", "django.views.generic"),
    *(
        "enode_django.checks.settings",
        "enode_django.client",
        "enode_django.checks.deploy",
        "enode_django.eventstore.postgres",
    ),
    *(
        "enode_django.eventstore.scanning",
        "enode_django.serialization.json_values",
        "enode_django.rebuilding.shadow_processor",
    ),
    *("enode_django.runtime", "enode_django.serialization.codec", "enode_django.testing", "inflection", "jsonschema"),
    *("opentelemetry.trace", "prometheus_client", "psutil", "rest_framework.request", "rest_framework.serializers"),
    *("rich.console", "yaml"),
]
"""Libraries that can be imported without settings. Those that are not installed are left out."""


def run(
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    seconds: float = 120.0,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, a script, ``-m MODULE`` or ``-c CODE``, and capture what it prints. ``given`` is
    its standard input.

    Raises `TimeoutError` after ``seconds``, and kills the process.
    """
    with tempfile.TemporaryDirectory() as directory:
        source, out, err = (os.path.join(directory, name) for name in ("in", "out", "err"))
        Path(source).write_text(given)
        request = {"argv": list(map(str, arguments)), "cwd": str(cwd), "in": source, "out": out, "err": err}
        status = _ask({**request, "env": dict(os.environ if env is None else env)}, seconds)
        shown = (Path(name).read_text() for name in (out, err))
        return subprocess.CompletedProcess(list(arguments), status, *shown)


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(_end, server)
    return server


def _ask(request: Mapping[str, Any], seconds: float) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], seconds)[0]:
        _end(server)
        raise TimeoutError(f"python {request['argv']} goes on after {seconds:g} s")
    return int(server.stdout.readline())


def _end(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()
    _server.cache_clear()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Fork a child for each request, and answer with its exit status. Return at the end of the requests."""
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        _, status = os.waitpid(child, 0)
        answers.write(b"%d\n" % os.waitstatus_to_exitcode(status))
        answers.flush()


def _become(request: Mapping[str, Any]) -> NoReturn:
    written = os.O_WRONLY | os.O_CREAT
    for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", written), (2, "err", written)):
        opened = os.open(request[name], flags)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for module in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[module]  # a project may have its own package of this name
    first, *rest = request["argv"]
    sys.path[:0] = ["" if first.startswith("-") else str(Path(first).parent), *_python_path()]
    _run(first, rest)
    raise SystemExit(0)


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _run(first: str, rest: list[str]) -> None:
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path.remove(str(ROOT))
    gc.freeze()  # otherwise the first collection of each child would copy all that memory
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
