"""Python processes that start and end fast: forked from one that has imported the libraries, and nothing of a project.

``start(["manage.py", "runbroker"], cwd=…, env=…)`` does what `subprocess.Popen` does with a new interpreter, and `run`
what `subprocess.run` does. Settings, apps and models are loaded by each process for itself. Code that depends on a new
interpreter (``PYTHONHASHSEED``, the imported modules, its command line, the end of libraries' modules) needs
`subprocess`.

The processes of a parallel run use one server: it has imported everything once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
        "enode_django.equeue.broker.server",
        "enode_django.eventstore.postgres",
    ),
    *(
        "enode_django.eventstore.scanning",
        "enode_django.processors.supervisor",
        "enode_django.serialization.json_values",
        "enode_django.rebuilding.shadow_processor",
    ),
    *("enode_django.runtime", "enode_django.serialization.codec", "enode_django.testing", "inflection", "jsonschema"),
    *("opentelemetry.trace", "prometheus_client", "psutil", "rest_framework.request", "rest_framework.serializers"),
    *("rich.console", "yaml"),
]
"""Libraries that can be imported without settings. Those that are not installed are left out."""


VARIABLE = "ENODE_TESTS_WARM"
"""The environment variable with the path of the socket at which a server of another process takes requests, and the
server's mount namespace, as JSON; "null" if there is none."""
LONGEST_REQUEST = 1 << 18
PID, END = struct.Struct("=q"), struct.Struct("=qd")
"""The answers of the server: the process id; at the end, the exit status and the seconds of processor time."""

_used = 0.0


def processor_seconds() -> float:
    """Return the processor time of the processes that were seen to end."""
    return _used


class Started:
    """A process, as `subprocess.Popen` presents one. ``answers`` is a pipe from the server."""

    def __init__(self, answers: int, stdout: IO[str] | None) -> None:
        (self.pid,) = PID.unpack(os.read(answers, PID.size))
        self.returncode: int | None = None
        self.stdout = stdout
        self._answers = answers

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Blocks. Raises `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        global _used
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode, used = END.unpack(os.read(self._answers, END.size))
            _used += used
            os.close(self._answers)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: IO[Any] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    start_new_session: bool = False,
) -> Started:
    """Start Python with these arguments: a script, ``-m MODULE`` or ``-c CODE``. By default the input is empty,
    standard output is a pipe of text, and errors go to standard output."""
    request = {"argv": list(map(str, arguments)), "cwd": str(cwd), "session": start_new_session}
    request["env"] = dict(os.environ if env is None else env)
    piped = None
    with contextlib.ExitStack() as closing:
        if stdout is None:
            reading, writing = os.pipe()
            piped, stdout = open(reading), closing.enter_context(open(writing, "w"))  # noqa: SIM115 - it lives on
        answers, answering = os.pipe()
        closing.callback(os.close, answering)
        streams = (stdin or closing.enter_context(open(os.devnull)), stdout, stderr or stdout)
        files = [*(stream.fileno() for stream in streams), answering]
        socket.send_fds(_requests(), [json.dumps(request).encode()], files)
    return Started(answers, piped)


def run(
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    seconds: float = 120.0,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, as `start` says, and capture what it prints. ``given`` is its standard input.

    Raises `TimeoutError` after ``seconds``, and kills the process and its children.
    """
    with contextlib.ExitStack() as closing:
        given_file, out, err = (closing.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given_file.write(given)
        given_file.seek(0)
        streams = {"stdin": given_file, "stdout": out, "stderr": err}
        process = start(arguments, cwd=cwd, env=env, start_new_session=True, **streams)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(f"python {list(map(str, arguments))} goes on after {seconds:g} s") from error
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, out.read(), err.read())


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Start a server for this process and those that it starts in the block. It ends with the block."""
    with contextlib.ExitStack() as closing:
        directory = closing.enter_context(tempfile.TemporaryDirectory(prefix="enode-warm-"))
        listening = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind(f"{directory}/requests")
        listening.listen(64)
        closing.callback(_end, *_start(listening))
        closing.callback(os.environ.update, {VARIABLE: os.environ.get(VARIABLE, "null")})
        os.environ[VARIABLE] = json.dumps([listening.getsockname(), _mounts()])
        yield


@functools.cache
def _requests() -> socket.socket:
    """Return a connection to the server: the shared one, or this process's own if there is none that has the same file
    systems. A process that is forked sees the files that its server sees."""
    shared = json.loads(os.environ.get(VARIABLE, "null"))
    if shared is not None and shared[1] == _mounts():
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.connect(shared[0])
        atexit.register(requests.close)
        return requests
    process, requests = _start()
    atexit.register(_end, process, requests)
    return requests


def _start(*listening: socket.socket) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a server. Return its process and the connection with which it ends."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        files = [one.fileno() for one in (theirs, *listening)]
        command = [sys.executable, "-m", "tests.warm", *map(str, files)]
        return subprocess.Popen(command, cwd=ROOT, pass_fds=files, start_new_session=True), requests


def _mounts() -> str:
    """Return the name of this process's mount namespace; empty where the system has none."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/mnt")
    return ""


def _end(process: subprocess.Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- the server -----------------------------------------------------------------------------------------------------


def serve(owner: socket.socket, listening: socket.socket | None) -> None:
    """Fork a child for each request of the owner, or of those that connect, and report its end. Return at the end of
    the owner's requests."""
    children: dict[int, int] = {}
    clients = {owner}
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.set_wakeup_fd(ending)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, nothing is written to the pipe
    while True:
        waiting = [listening] if listening is not None else []
        watched: list[int | socket.socket] = [ended, *waiting, *clients]
        ready, _, _ = select.select(watched, [], [])
        if ended in ready:
            os.read(ended, LONGEST_REQUEST)
            _report(children)
        if listening is not None and listening in ready:
            clients.add(listening.accept()[0])
        for client in clients.intersection(ready):
            asked, files, _, _ = socket.recv_fds(client, LONGEST_REQUEST, 4)
            if not asked:
                if client is owner:
                    return
                clients.remove(client)
                client.close()
                continue
            *streams, answers = files
            child = os.fork()
            if child == 0:
                others = [*(one.detach() for one in (*waiting, *clients)), answers, ended, ending, *children.values()]
                _become(json.loads(asked), streams, others)
            for stream in streams:
                os.close(stream)
            os.write(answers, PID.pack(child))
            children[child] = answers


def _report(children: dict[int, int]) -> None:
    """Report each child that has ended."""
    for child in list(children):
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            answers = children.pop(child)
            with contextlib.suppress(BrokenPipeError):  # the client has ended
                os.write(answers, END.pack(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))
            os.close(answers)


def _become(request: Mapping[str, Any], streams: Sequence[int], others: Sequence[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for file in (*streams, *others):
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if os.environ.get("PYTHONUNBUFFERED"):
        # The server may have been started without it, and its own buffer would stay behind the text.
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
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


def _keep_imported() -> None:
    """Let children that end leave alone what the server has imported. To clear it, each would first copy the memory,
    which takes a tenth of a second. What a child has imported for itself ends as in any process, except that
    what it prints then is lost unless flushed."""
    modules = {name: module for name, module in sys.modules.items() if name not in sys.builtin_module_names}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))  # with a reference too many, they are never freed

    def leave_out() -> None:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    atexit.register(leave_out)


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path.remove(str(ROOT))
    _keep_imported()
    gc.freeze()  # otherwise the first collection of each child would copy all that memory
    owner, *listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    serve(owner, listening[0] if listening else None)


if __name__ == "__main__":
    main()
