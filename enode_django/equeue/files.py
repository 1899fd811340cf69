"""File system operations for the store, and the translation of their errors."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from enode_django.equeue.hosts import host_name
from enode_django.exceptions import ConfigurationError, DirectoryInUse, QueueFull, StorageFailed

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO)})
"""Errors of a place that a file system cannot read, even if asked again."""
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR})
PRIVATE = 0o600
"""The mode of every file: messages and data about them are readable only by the broker's user."""
_PRIVATE_DIRECTORY = 0o700


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise `QueueFull` if the disk, a quota or a limit on files leaves no room, else `StorageFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise QueueFull(f"no room for {doing} ({error.strerror}); make room on the disk and send again") from error
        raise StorageFailed(f"{doing} failed: {error}; {_remedy(error)} and start the broker again") from error


def _remedy(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return "raise the limit of open files (ulimit -n, or LimitNOFILE in systemd's unit)"
    if error.errno == errno.ENFILE:
        return "raise the machine's limit of open files (sysctl fs.file-max)"
    return "look after the disk"


@contextmanager
def usable(directory: Path) -> Iterator[None]:
    """Raise `ConfigurationError` if the path is not a directory, or this process may not write to it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        raise ConfigurationError(f"the broker cannot use the directory {str(directory)!r}{_why(error)}") from error


def _why(error: OSError) -> str:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f": {str(error.filename)!r} is a file; name another directory"
    return f" ({error}); give it to the user that runs the broker (id {os.geteuid()}), or name another one"


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: created, renamed and deleted files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each durable on return. New ones are accessible only to their owner."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(_PRIVATE_DIRECTORY, exist_ok=True)
        sync_directory(directory.parent)


def shut_out_others(directory: Path) -> None:
    """Revoke the rights of other users that an earlier version has granted. Rights of the group stay: they may have
    been granted for backups. No effect on a directory of another user."""
    mode = directory.stat().st_mode
    if mode & stat.S_IRWXO:
        with suppress(PermissionError):
            directory.chmod(stat.S_IMODE(mode) & ~stat.S_IRWXO)


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is accessible only to its owner. An ``opener`` for `open`."""
    return os.open(path, flags, PRIVATE)


def make_ignored_directory(directory: Path) -> None:
    """Make a directory as `make_directory` does, and let git ignore its content. An existing one is left as it is."""
    if directory.is_dir():
        return
    make_directory(directory)
    name = directory / ".gitignore"
    with suppress(OSError), open(name, "w", opener=open_private) as file:  # optional: the disk may be full
        file.write("# Made by the broker: its messages belong in no repository.\n*\n")


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Call `os.pwrite` until everything is written."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


@contextmanager
def replaced_file(path: Path, *, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a file for new content. After a crash at any point, ``path`` holds its old content or the new one. Blocks
    at the end until the new content is durable; an exception keeps the old one.

    With ``keep``, the old content is moved to that file; after a crash it may be there alone.
    """
    aside = path.with_name(path.name + ".new")
    try:
        with open(aside, "wb", opener=open_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def lock_file(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file without waiting, until it is closed. Raises `BlockingIOError` if another process holds it."""
    import fcntl  # Windows has none, and can be a client

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


class DirectoryLock:
    """A lock of a directory, held by one process at a time and released when the process ends in any way."""

    def __init__(self, directory: Path) -> None:
        """Take the lock without waiting. Raises `DirectoryInUse`, which names the holder."""
        self._path = directory / "lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            lock_file(self._descriptor)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 300, 0).decode(errors="replace") or "another process"
            os.close(self._descriptor)
            raise DirectoryInUse(
                f"{str(directory)!r} is used by {holder}; end that broker, or give this one a directory of its own"
            ) from error
        with suppress(OSError):  # the name is for people; a full disk may have no room for it
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {host_name()}".encode(), 0)

    @property
    def is_in_place(self) -> bool:
        """True if the directory is still the one that is locked: it was neither removed nor replaced by another one.
        Blocks on the disk."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        os.close(self._descriptor)
