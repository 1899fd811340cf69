"""The broker: a TCP server in front of a store."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from enode_django.equeue.arrivals import Arrivals
from enode_django.equeue.broker.accepting import Accepting
from enode_django.equeue.broker.answering import Answering
from enode_django.equeue.broker.backups import Backups
from enode_django.equeue.broker.checkpoints import Checkpoints
from enode_django.equeue.broker.deleter import Deleter
from enode_django.equeue.broker.flusher import Action, Flusher
from enode_django.equeue.broker.handlers import Handlers
from enode_django.equeue.broker.interpreter import favour_loop
from enode_django.equeue.broker.measuring import LOOK_INTERVAL, Figures, Measuring
from enode_django.equeue.broker.options import EVERY_WRITE, BrokerOptions, location_of, parse_location
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.sessions import Session
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.stops import Stops
from enode_django.exceptions import ConfigurationError, QueueFull, StorageFailed

__all__ = ["run"]

logger = logging.getLogger(__name__)

LONGEST_STOP = 10.0
FIGURES_INTERVAL = 5.0
SHARE_OF_ADDRESS = 4
"""One address may have a quarter of all connections (at least 16) whose handshake is not done."""
SPARE_FILES = 256
"""Open files that are left for messages, at most half of those that the process may have."""
BACKLOG = 1024
_TICK = 1.0
_GOODBYE = 1.0


def run(
    options: BrokerOptions,
    on_ready: Callable[[str], object] = lambda location: None,
    *,
    on_turn: Callable[[], object] = lambda: None,
    on_stop: Callable[[], object] = lambda: None,
    on_figures: Callable[[Figures], object] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, in the main thread; returns the exit status, 0 after a clean stop.

    ``on_ready`` gets the location that clients can connect to (with the real port if the options say 0). ``on_turn`` is
    called every second, ``on_stop`` at the first signal, ``on_figures`` (see `Measuring.figures`) every few seconds.
    The broker's loop calls them; they must not block.

    The first signal answers the requests under way and writes a checkpoint; another one, at least `AS_ONE` seconds
    later, ends the process at once, as a crash would. Raises `ConfigurationError` for an address or certificates that
    cannot be used, `DirectoryInUse`, and `QueueFull` and `StorageFailed` if the disk is full or fails.

    For example::

        raise SystemExit(run(BrokerOptions(directory=Path("broker"), listen="tcp://127.0.0.1:7625")))
    """
    options = dataclasses.replace(
        options, max_connections=most_connections(options.max_connections, _allow_many_files())
    )

    def ready(location: str) -> None:
        favour_loop()
        on_ready(location)

    return asyncio.run(Broker(options, on_turn=on_turn, on_stop=on_stop, on_figures=on_figures).serve(ready))


class Broker:
    def __init__(
        self,
        options: BrokerOptions,
        *,
        on_turn: Callable[[], object],
        on_stop: Callable[[], object],
        on_figures: Callable[[Figures], object] | None,
    ) -> None:
        self._options = options
        self._on_turn = on_turn
        self._on_stop = on_stop
        self._on_figures = on_figures
        self._store = MessageStore(
            options.directory,
            chunk_size=options.chunk_size,
            low_watermark=options.low_watermark,
            high_watermark=options.high_watermark,
            ring_batches=options.ring_batches,
            ring_bytes=options.ring_bytes,
            shows_safe=options.flush == EVERY_WRITE,
            reserve=options.chosen_reserve,
            low_space=options.chosen_low_space,
            accept_loss=options.accept_loss,
        )
        self._state = BrokerState(self._store, patience=options.patience_of_leases, allocate=options.allocate)
        self._sessions: set[Session] = set()
        self._arrivals: Arrivals[Session] = Arrivals(max(16, options.max_connections // SHARE_OF_ADDRESS))
        self._stopping = asyncio.Event()
        self._stops = Stops()
        self._failure: BaseException | None = None
        self._is_short = False

    async def serve(self, on_ready: Callable[[str], object]) -> int:
        try:
            opened = self._state.open()
            logger.info("opened %s, run %d: %s", self._options.directory, self._state.run, opened)
            self._build()
            server = await self._listen()
        except BaseException:
            self._store.abandon()
            raise
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        timers = [asyncio.create_task(self._every(seconds, action)) for seconds, action in self._chores()]
        timers.append(asyncio.create_task(self._tell_figures()))  # the first figures at once
        on_ready(location_of(*server.sockets[0].getsockname()[:2]))
        await self._stopping.wait()
        server.close()
        for timer in timers:
            timer.cancel()
        return await self._finish()

    def _build(self) -> None:
        options = self._options
        self._flusher = Flusher(self._store, on_flushed=self._flushed, on_failure=self._fail)
        self._checkpoints = Checkpoints(
            self._store, self._state, interval=options.checkpoint_interval, size=options.checkpoint_bytes
        )
        self._deleter = Deleter(
            self._store.deletion,
            options.retention,
            self._state.consumed,
            checkpoint=self._checkpoints.write,
            space=self._store.space,
        )
        self._pulling = Pulling(self._store, self._state.route_version)
        self._accepting = Accepting(
            self._store,
            self._state,
            self._pulling,
            limit=options.max_unflushed,
            patience=options.patience_of_sends,
            flush=self._flusher.begin,
        )
        self._answering = Answering(self._state.run << 32, time.monotonic)
        self._measuring = Measuring(
            self._store,
            self._state,
            self._sessions,
            self._accepting.sent_bytes,
            lambda: {"waiting_pulls": len(self._pulling), "waiting_inboxes": len(self._answering)},
        )
        self._handlers = Handlers(
            self._store,
            self._state,
            self._pulling,
            self._accepting,
            self._answering,
            when_safe=self._when_safe if options.flush == EVERY_WRITE else None,
            trim=self._deleter.trim,
            backups=Backups(self._store, self._checkpoints.write),
            measuring=self._measuring,
        )

    async def _listen(self) -> asyncio.Server:
        host, port = parse_location(self._options.listen)
        tls: dict[str, Any] = {}
        if self._options.tls is not None:
            tls["ssl"] = self._options.tls.context()
            tls["ssl_handshake_timeout"] = self._options.handshake_timeout
            tls["ssl_shutdown_timeout"] = _GOODBYE
        try:
            # asyncio tries and logs ``backlog`` accepts in a row, also if the first finds no free descriptor.
            server = await asyncio.get_running_loop().create_server(self._session, host, port, backlog=1, **tls)
        except OSError as error:
            raise ConfigurationError(
                f"the broker cannot listen on {self._options.listen}: {error}; is another one running there?"
            ) from error
        for listening in server.sockets:
            with listening.dup() as same:
                same.listen(BACKLOG)
        return server

    def _session(self) -> Session:
        options = self._options
        return Session(
            self._handlers,
            options.all_secrets,
            self._state.run,
            self._sessions,
            most=options.max_connections,
            arrivals=self._arrivals,
        )

    # -- the disk -------------------------------------------------------------------------------------------------

    def _when_safe(self, action: Action) -> None:
        position = self._store.position
        if position <= self._store.flushed:
            action(None)
            self._pulling.wake_safe()  # a checkpoint has made it safe since it was stored
        else:
            self._flusher.after(position, action)

    def _flushed(self) -> None:
        self._pulling.wake_safe()
        self._accepting.retry()

    def _fail(self, error: BaseException) -> None:
        """Stop: the disk did not keep what was written, so only what a new start reads from it can be trusted."""
        logger.critical("the broker stops: %s", error)
        self._failure = error
        self._stopping.set()

    # -- chores ---------------------------------------------------------------------------------------------------

    def _chores(self) -> list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]]:
        options = self._options
        return [
            (min(_TICK, options.checkpoint_interval), self._tidy),
            (options.retention_interval, self._deleter.delete),
            (options.flush_interval, self._flush),
            (min(_TICK, options.checkpoint_interval), self._mind_disk),
            (_TICK, self._turn),
            (LOOK_INTERVAL, self._measuring.look),
            (FIGURES_INTERVAL, self._tell_figures),
        ]

    async def _every(self, seconds: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await action()
            except Exception:  # the other chores and the next turn of this one must go on
                logger.exception("a chore of the broker failed; it is tried again")

    async def _turn(self) -> None:
        self._on_turn()

    async def _tell_figures(self) -> None:
        if self._on_figures is not None:
            self._on_figures(await self._measuring.figures())

    async def _flush(self) -> None:
        self._flusher.flush()
        await self._flusher.needed()  # so that an idle broker does not wake up

    async def _tidy(self) -> None:
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions):
            session.check_silence(now, handshake=self._options.handshake_timeout, frame=self._options.frame_timeout)
        self._answering.forget()
        self._state.forget_producers()
        self._store.drop_idle()
        self._checkpoints.begin_if_due()

    async def _mind_disk(self) -> None:
        """Stop if the directory was removed or replaced: further files would not belong to those that are open."""
        if await asyncio.to_thread(lambda: self._store.is_in_place):
            await self._mind_space()
        else:
            directory = str(self._options.directory)
            self._fail(
                StorageFailed(
                    f"its directory {directory!r} was removed, or another one took its place; put it back, or start "
                    "the broker again with what is there"
                )
            )

    async def _mind_space(self) -> None:
        """While space on the disk is short, delete consumed messages before their time."""
        is_short = await asyncio.to_thread(self._store.space.look)
        if is_short is not self._is_short:
            self._is_short = is_short
            if is_short:
                logger.error(
                    "room is short on the broker's disk, %d bytes are free: consumed messages are deleted before their "
                    "time, and sends are refused when it is full; make room on it",
                    self._store.space.free,
                )
            else:
                logger.warning("there is room on the broker's disk again")
        if is_short:
            await self._deleter.make_room()

    # -- the end --------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stops.add()
        if self._stops.count > 1:
            signal.raise_signal(signal.SIGKILL)
        if not self._stopping.is_set():
            logger.info("stopping")
            self._on_stop()
            self._stopping.set()

    async def _finish(self) -> int:
        if self._failure is not None:
            for session in list(self._sessions):
                session.close()
            await self._wait_for_disk()
            self._store.abandon()
            return 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_STOP):
                await self._drain()
        for session in list(self._sessions):
            session.abort()
        await self._wait_for_disk()
        try:
            self._store.close(self._state.plain(is_last=True))
        except QueueFull as error:
            logger.error("no last checkpoint could be written, so that the next start has more to read: %s", error)
        return 0

    async def _wait_for_disk(self) -> None:
        """Wait until no file is being deleted, and no checkpoint written: it must not replace the last one."""
        self._pulling.indexes.close()
        await self._deleter.stop()
        await self._checkpoints.finish()

    async def _drain(self) -> None:
        """Answer the requests under way. A client that goes on sending finds its connection closed."""
        while self._sessions:
            self._pulling.answer_all()
            self._answering.answer_all()
            self._flusher.flush()
            for session in list(self._sessions):
                session.end()
            await asyncio.sleep(0.01)  # each turn answers what was written since; no single event covers that
        await self._flusher.finish()


def most_connections(wanted: int, files: int) -> int:
    """Return the most connections of a process that may have this many open files. Logs if they are fewer than
    ``wanted``."""
    most = min(wanted, files - min(files // 2, SPARE_FILES))
    if most < wanted:
        logger.warning(
            "the limit of %d open files allows %d connections, not %d: raise it (ulimit -n, or LimitNOFILE in "
            "systemd's unit), or lower ENODE['BROKER']['MAX_CONNECTIONS']",
            files,
            most,
            wanted,
        )
    return most


def _allow_many_files() -> int:
    """Raise the limit of open files: each connection is one, and the usual limit of 1,024 is too low. Return it."""
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if limit != resource.RLIM_INFINITY else sys.maxsize
