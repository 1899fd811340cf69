from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

from enode_django.conf import make_conf
from enode_django.conf.groups import Conf
from enode_django.processes import template
from enode_django.processes.children import STOP_SIGNALS, UNKNOWN_STATUS, ContextChildren, Job, Started
from enode_django.processes.template import ForkedChild, TemplateChildren, make_children, why_not
from tests import warm
from tests.acceptance.waiting import wait_until
from tests.meta.tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

SOON = 60.0


class NoOthers:
    """Stands where children are started when the template cannot."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_closed = False

    def start(self, job: Job) -> Started:
        self.asked.append(job.name)
        raise InterruptedError

    def close(self) -> None:
        self.is_closed = True


def echo(connection: Connection, notes: Any, prefix: str) -> None:
    """Answers each text until it gets an empty one, and notes how many there were."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    while text := connection.recv_bytes():
        notes[-1] += 1
        connection.send_bytes(prefix.encode() + text)
    sys.exit(7)


def sees(connection: Connection, notes: Any) -> None:
    """Send the facts that a child finds: open connections, systemd's variables, threads, garbage collection."""
    pipes = template._connections()
    connection.send_bytes(
        json.dumps(
            ["NOTIFY_SOCKET" in os.environ, len(pipes), threading.active_count(), gc.isenabled(), os.getpid()]
        ).encode()
    )
    connection.recv_bytes()


def leaves_a_process(connection: Connection, notes: Any) -> None:
    """Ends, while a process of its own lives on with all that it has inherited, until its input ends."""
    connection.send_bytes(b"ready")
    if os.fork() == 0:
        connection.recv_bytes()
        os._exit(0)
    os._exit(3)


@pytest.fixture
def others() -> NoOthers:
    return NoOthers()


@pytest.fixture
def children(others: NoOthers) -> Iterator[TemplateChildren]:
    with closing(TemplateChildren(others)) as children:
        yield children


class Rendezvous(Connection):
    """Lets two threads that wait for the same message see that it is there before either reads it."""

    both = threading.Barrier(2)

    def poll(self, timeout: float | None = 0.0) -> bool:
        found = super().poll(timeout)
        if timeout is None:
            self.both.wait(SOON)
        return found


def test_two_threads_may_wait_for_the_end_of_a_child() -> None:
    """With ``--reload`` the supervisor's thread and the thread that ends the process both wait."""
    ours, theirs = Pipe(duplex=False)
    theirs.send_bytes(template._NUMBER.pack(4711))
    child = ForkedChild(Rendezvous(os.dup(ours.fileno()), writable=False))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(child.join) for _ in range(2)]
        theirs.send_bytes(template._NUMBER.pack(3))
        theirs.close()  # otherwise a thread that finds nothing more to read would wait for ever
        for one in waiting:
            one.result(SOON)
    assert (child.pid, child.exitcode) == (4711, 3)
    ours.close()


def test_the_template_ends_though_a_child_cannot_be_waited_for(children: TemplateChildren) -> None:
    class Broken(ForkedChild):
        def __init__(self) -> None:
            pass

        def is_alive(self) -> bool:
            raise InterruptedError

    children._living.append(Broken())
    with pytest.raises(InterruptedError):
        children.close()
    assert not children._template.is_alive()
    children._living.clear()


def test_a_child_answers_notes_and_tells_its_status(children: TemplateChildren) -> None:
    process, connection, notes = children.start(Job("one", echo, ("> ",), notes=2))
    connection.send_bytes(b"hello")
    assert connection.recv_bytes() == b"> hello"
    assert list(notes) == [0, 1]
    assert process.is_alive()
    assert process.exitcode is None
    connection.send_bytes(b"")
    process.join(SOON)
    assert (process.exitcode, process.is_alive()) == (7, False)
    assert wait([process.sentinel], SOON), "who waits for its end is told"


@pytest.mark.parametrize(("end", "status"), [("terminate", -signal.SIGTERM), ("kill", -signal.SIGKILL)])
def test_the_signal_that_ended_a_child_is_known(children: TemplateChildren, end: str, status: int) -> None:
    process, connection, _ = children.start(Job("one", echo, ("",), notes=1))
    connection.send_bytes(b"x")
    connection.recv_bytes()  # it lets signals through by now
    getattr(process, end)()
    process.join(SOON)
    assert process.exitcode == status
    getattr(process, end)()  # nobody else is meant


def test_children_share_no_connection_and_speak_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    with closing(TemplateChildren(NoOthers())) as children:
        started = [children.start(Job(f"{n}", sees, ())) for n in range(3)]
        seen = [json.loads(one.connection.recv_bytes()) for one in started]
        for one in started:
            one.connection.send_bytes(b"")

    assert [told for told, *_ in seen] == [False] * 3
    assert all(threads == 1 for _, _, threads, *_ in seen)
    assert all(collects for *_, collects, _ in seen), "the template does not"
    assert [pid for *_, pid in seen] == [one.process.pid for one in started]
    counts = [count for _, count, *_ in seen]
    assert len(set(counts)) == 1, f"a later child holds what an earlier one has: {counts}"


def test_the_end_of_a_child_is_seen_though_a_process_of_its_own_lives_on(children: TemplateChildren) -> None:
    process, connection, _ = children.start(Job("one", leaves_a_process, ()))
    assert connection.recv_bytes() == b"ready"
    process.join(SOON)
    assert process.exitcode == 3
    connection.send_bytes(b"end")


def test_without_its_template_a_child_is_let_go_and_others_start_the_next(
    children: TemplateChildren, others: NoOthers
) -> None:
    process, connection, _ = children.start(Job("one", echo, ("",), notes=1))
    assert children._template.pid is not None
    os.kill(children._template.pid, signal.SIGKILL)
    process.join(SOON)
    assert process.exitcode == UNKNOWN_STATUS
    connection.send_bytes(b"x")
    assert connection.recv_bytes() == b"x", "it lives on until its connection ends"
    connection.send_bytes(b"")
    with pytest.raises(InterruptedError):
        children.start(Job("two", echo, ("",)))
    assert others.asked == ["two"]


def test_a_template_that_hangs_is_killed_and_others_start_the_child(
    children: TemplateChildren, others: NoOthers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process, connection, _ = children.start(Job("one", echo, ("",), notes=1))
    assert children._template.pid is not None
    os.kill(children._template.pid, signal.SIGSTOP)
    monkeypatch.setattr(template, "ANSWERS_WITHIN", 0.05)
    with pytest.raises(InterruptedError):
        children.start(Job("two", echo, ("",)))
    assert others.asked == ["two"]
    assert "has not answered for 0.05 s" in caplog.text
    assert not children._template.is_alive()
    process.join(SOON)
    assert process.exitcode == UNKNOWN_STATUS, "a template that hangs would never tell that its children have ended"
    connection.send_bytes(b"")


def test_what_cannot_be_imported_is_left_to_others(children: TemplateChildren, others: NoOthers) -> None:
    with pytest.raises(InterruptedError):
        children.start(Job("one", echo, ("",), imports=["enode_django.no_such_module"]))
    assert others.asked == ["one"]


def test_after_a_child_that_could_not_be_forked_the_template_forks_the_next(
    children: TemplateChildren, others: NoOthers, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InterruptedError):
        children.start(Job("one", echo, ("",), imports=["enode_django.no_such_module"]))
    assert "one was not forked" in caplog.text
    assert "is gone" not in caplog.text
    process, connection, _ = children.start(Job("two", echo, ("> ",), notes=1))
    connection.send_bytes(b"hello")
    assert connection.recv_bytes() == b"> hello"
    assert isinstance(process, ForkedChild)
    assert others.asked == ["one"]


@pytest.mark.parametrize("spare", range(10))
def test_a_template_without_a_free_descriptor_leaves_no_child_and_forks_the_next(
    children: TemplateChildren, others: NoOthers, spare: int
) -> None:
    """With few ``spare`` descriptors it fails at receiving a job's, or at the pipes of the fork."""
    pid = children._template.pid
    assert pid is not None
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [number for number in range(max(used) + 11) if number not in used]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[spare], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with suppress(InterruptedError):
        first = children.start(Job("short", echo, ("",), 1))
        first.process.kill()
        first.process.join(SOON)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    started = children.start(Job("next", echo, ("",), 1))
    assert "next" not in others.asked
    with open(f"/proc/{pid}/task/{pid}/children") as living:
        assert living.read().split() == [str(started.process.pid)]
    started.connection.send_bytes(b"")
    started.process.join(SOON)
    assert started.process.exitcode == 7


def test_a_child_that_cannot_be_watched_is_ended() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(SOON,))
    process.start()
    ours, theirs = Pipe(duplex=False)
    ours.close()
    with closing(theirs), pytest.raises(BrokenPipeError):
        template._watched(process, theirs)
    assert process.exitcode == -signal.SIGKILL


def test_template_holds_nothing_of_children_that_have_ended(children: TemplateChildren) -> None:
    """Workers that die again and again must not use up its descriptors."""
    held, with_one = f"/proc/{children._template.pid}/fd", 0
    for _ in range(10):
        process, connection, _ = children.start(Job("one", echo, ("",), notes=1))
        with_one = with_one or len(os.listdir(held))  # not earlier: the template closes some when it begins
        connection.send_bytes(b"")
        process.join(SOON)
    wait_until(lambda: len(os.listdir(held)) < with_one, "its descriptors are closed")


def test_closing_ends_those_that_live() -> None:
    others = NoOthers()
    children = TemplateChildren(others)
    process, connection, _ = children.start(Job("one", echo, ("",), notes=1))
    connection.send_bytes(b"x")
    connection.recv_bytes()
    children.close()
    assert process.exitcode == -signal.SIGTERM
    assert children._template.exitcode == 0
    assert others.is_closed, "so do those that were started without the template"
    children.close()


# -- without a fork ---------------------------------------------------------------------------------------------------

ASKS = """
import sys, os
{before}
from enode_django.processes.template import why_not
print(why_not())
"""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("", "None"),
        ("from threading import *; Thread(target=Event().wait, name='mine', daemon=True).start()", "threads: mine"),
        ("import socket; kept = socket.socket()", "has opened connections: file descriptor"),
        ("import select; kept = select.epoll()", "anon_inode:[eventpoll]"),
        (
            "import ctypes; c = ctypes.CDLL(None); "
            "c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(c.pause, ctypes.c_void_p), None)",
            "a library that the project loads has started 1 threads",
        ),
    ],
)
def test_a_process_is_forked_only_when_that_is_safe(before: str, reason: str) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    asked = warm.run(["-c", ASKS.format(before=before)], cwd=ROOT, env=environment)
    assert asked.returncode == 0, asked.stderr
    assert reason in asked.stdout


def in_another_thread(call: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_forks_nothing() -> None:
    assert in_another_thread(why_not) == "this is not the main thread"


def test_elsewhere_than_on_linux_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not() == "on darwin nothing is forked"


def test_the_settings_may_say_that_nothing_is_forked() -> None:
    assert isinstance(make_children(make_conf({"WORKERS": {"PRELOAD": False}})), ContextChildren)


def test_it_says_why_nothing_is_forked(caplog: pytest.LogCaptureFixture) -> None:
    with closing(socket.socket()), caplog.at_level("INFO", "enode_django.supervisor"):
        children = in_another_thread(lambda: make_children(Conf()))
    assert isinstance(children, ContextChildren)
    assert "each worker loads the project by itself: this is not the main thread" in caplog.text
