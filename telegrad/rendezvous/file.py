r"""Two files that all workers see: a store, and the coordinator's endpoint.

The store is a log of changes, from which every reader builds a table:

    telegrad store 1\n | 16 random bytes
    [crc32 of the body | its length | body] [...] ...
    body: one or several changes, made at once: [action, key length, value length, key, value]

A writer appends a change under an exclusive lock of the file. A reader takes no lock and stops at
the first record that is not whole. If a writer is killed in the middle of a record, the next writer
cuts that record off; so every change is there whole or not at all. By the random bytes a reader
recognises a file: a deleted file may leave its inode to its successor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, final

from telegrad.critical import critical
from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous.endpoint_source import EndpointSource, Published
from telegrad.rendezvous.store import (
    Store,
    StoreTable,
    closed_error,
    late_error,
    missing_in,
    serve_request,
)
from telegrad.transport import fault_of_file, refuse_to_block

MAGIC = b"telegrad store 1\n"
BEGINNING_BYTES = len(MAGIC) + 16
HEAD = struct.Struct(">II")  # crc32 and length of the body
KEY = struct.Struct(">cII")  # action, length of the key, length of the value
SET, APPEND, DELETE, PUSH, POP = b"s", b"a", b"d", b"q", b"p"
LOOKS: Final = {"get", "multi_get", "wait", "check", "num_keys", "list_keys", "queue_len"}

LOCK_TIMEOUT = 60.0  # a change takes well under a millisecond; a stopped writer may hold the lock
LOCK_PAUSE = 0.001
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # a look costs about 10 us, or a network trip


@final
class _Log(StoreTable):
    """The file with its changes, and the table and queues that they make.

    Args:
        path: The absolute path of the file.

    Attributes:
        path: The argument of that name.
        closed: An event, set when the store is closed.
        values: The value of each key.
        queues: The values of each queue that is not empty.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed = threading.Event()
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self._lock = threading.Lock()  # guards the tables and the position in the file
        self._beginning = b""  # of the file that was read
        self._position = 0
        self._descriptor = -1  # of the file, for the thread that holds its lock

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Reads the records appended since the last look; the body may look at the tables."""
        self._check_usable()
        with self._words():
            try:
                descriptor = open_own_file(self.path, os.O_RDONLY)
            except FileNotFoundError:
                self._forget()  # deleted: the next change makes it anew
            else:
                try:
                    self._read(descriptor)
                finally:
                    os.close(descriptor)
        with critical.section, self._lock:
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the file's lock, with the tables up to date; the body may look and change them."""
        self._check_usable()
        with self._words():
            descriptor = self._open_locked()
        self._descriptor = descriptor
        try:
            with self._words():
                end = self._read(descriptor)
                if end < os.fstat(descriptor).st_size:
                    os.ftruncate(descriptor, end)  # half a record of a killed writer
                if end == 0:
                    self._append(MAGIC + os.urandom(BEGINNING_BYTES - len(MAGIC)))
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile holds it too
            os.close(descriptor)

    def write(self, entries: Mapping[str, bytes]) -> None:
        """Writes values; the file does not grow by those that the keys hold already."""
        news = [(SET, *each) for each in entries.items() if each[1] != self.values.get(each[0])]
        if news:
            self._append(_record(*news))

    def extend(self, key: str, tail: bytes) -> None:
        """Writes a value behind the one that a key holds."""
        self._append(_record((APPEND, key, tail)))

    def delete(self, key: str) -> None:
        """Removes a key."""
        self._append(_record((DELETE, key, b"")))

    def push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue."""
        self._append(_record((PUSH, key, value)))

    def pop(self, key: str) -> bytes:
        """Takes the first value of a queue."""
        value = self.queues[key][0]
        self._append(_record((POP, key, b"")))
        return value

    def _open_locked(self) -> int:
        """Opens the file at the path, and locks it against other processes and threads."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            descriptor = open_own_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.lstat(self.path)):
                    return descriptor
            except FileNotFoundError:
                pass  # deleted while it was opened
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                    os.close(descriptor)
                    raise
            os.close(descriptor)
            self._check_usable()
            if time.monotonic() >= deadline:
                raise RendezvousTimeoutError(
                    f"{self.path!r} is locked by another process for {LOCK_TIMEOUT:g} s; "
                    "end the one that was stopped in the middle of a change"
                )
            self.closed.wait(LOCK_PAUSE)

    def _read(self, descriptor: int) -> int:
        """Takes over the whole records that follow; returns the position behind them."""
        with critical.section, self._lock:
            size = os.fstat(descriptor).st_size
            beginning = os.pread(descriptor, min(BEGINNING_BYTES, size), 0)
            if beginning != self._beginning or size < self._position:
                self._clear()
                self._beginning, self._position = beginning, BEGINNING_BYTES
            if len(beginning) < BEGINNING_BYTES or not beginning.startswith(MAGIC):
                return self._not_begun(beginning)
            data = os.pread(descriptor, size - self._position, self._position)
            self._position += self._take_records(data)
            return self._position

    def _not_begun(self, data: bytes) -> int:
        if MAGIC.startswith(data[: len(MAGIC)]):  # new, or its first writer was killed
            return 0
        raise RendezvousError(
            f"{self.path!r} is not a store (it begins with {data[:16]!r}); name another file"
        )

    def _take_records(self, data: bytes) -> int:
        start = 0
        while (body := _whole_body(data, start)) is not None:
            start += HEAD.size + len(body)
            for action, key, value in _changes(body):
                self._take_change(action, key, value)
        return start

    def _take_change(self, action: bytes, key: str, value: bytes) -> None:
        match action:
            case b"s":
                self.values[key] = value
            case b"a":
                self.values[key] = self.values.get(key, b"") + value
            case b"d":
                self.values.pop(key, None)
            case b"q":
                self.queues.setdefault(key, deque()).append(value)
            case b"p":
                self.queues[key].popleft()
                if not self.queues[key]:
                    del self.queues[key]
            case _:
                raise RendezvousError(
                    f"{self.path!r} was written by a newer telegrad (it has {action!r}); use one "
                    "version on all workers"
                )

    def _append(self, data: bytes) -> None:
        """Writes a whole record and takes it over; removes it again if the disk is full."""
        descriptor = self._descriptor
        end = os.fstat(descriptor).st_size
        with self._words():
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                os.ftruncate(descriptor, end)
                raise
            self._read(descriptor)

    def _forget(self) -> None:
        with critical.section, self._lock:
            self._clear()
            self._beginning, self._position = b"", 0

    def _clear(self) -> None:
        self.values.clear()
        self.queues.clear()

    def _check_usable(self) -> None:
        refuse_to_block("a FileStore", "write `await rpc.to_thread(...)`")
        if self.closed.is_set():
            raise closed_error("the store")

    @contextlib.contextmanager
    def _words(self) -> Iterator[None]:
        """Turns errors of the file system into RendezvousError."""
        try:
            yield
        except RendezvousError:
            raise
        except OSError as error:
            raise RendezvousError(_explain(self.path, error)) from error


@final
class FileStore(Store):
    """A table in a file, for processes that share a directory and no network address yet.

    The file grows by one record with every change and is never rewritten: it is for the few values
    that a job needs to begin. It outlives the job; delete it before another job starts under the
    same name. A network file system must support locks (NFS does).

    Args:
        path: The path of the file, which is made with mode 0600 if it does not exist. Its
            directory must exist. A symbolic link is not followed, and a file that another user
            owns or may write is refused.

    Raises:
        RendezvousError: The file cannot be made, read or written, is not this user's own, or is
            not a store.

    Example:
        >>> import tempfile
        >>> store = FileStore(tempfile.mkdtemp() + "/store")
        >>> store.set("address", b"10.0.0.1")
        >>> FileStore(store.path).get("address", timeout=1.0)
        b'10.0.0.1'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._log = _Log(self.path)
        with self._log.writing():
            pass

    def __repr__(self) -> str:
        return f"FileStore({self.path!r})"

    def clone(self) -> FileStore:
        """Opens the file once more; see `Store.clone`."""
        with self._log.reading():
            pass  # this one is open
        return FileStore(self.path)

    def close(self) -> None:
        """Ends every wait in this object with RendezvousError; idempotent. The file stays."""
        self._log.closed.set()

    def _serve(self, verb: str, request: Mapping[str, Any], timeout: float | None) -> object:
        looks = verb in LOOKS
        if timeout is None:
            with self._log.reading() if looks else self._log.writing():
                return serve_request(self._log, verb, request)
        for left in self._looks(timeout):
            with self._log.reading():
                missing = missing_in(self._log, verb, request)
                if looks and not missing:
                    return serve_request(self._log, verb, request)
            if not missing:
                with self._log.writing():
                    missing = missing_in(self._log, verb, request)
                    if not missing:  # nobody else was faster
                        return serve_request(self._log, verb, request)
            if left <= 0:
                break
        raise late_error(verb, missing, timeout)

    def _looks(self, timeout: float) -> Iterator[float]:
        """Yields the seconds left for each look at the file, with growing pauses between them."""
        deadline = time.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            left = deadline - time.monotonic()
            yield left
            self._log.closed.wait(max(min(pause, left), 0.0))
            pause = min(2 * pause, LONGEST_PAUSE)


def open_own_file(path: str, flags: int) -> int:
    """Opens a file of this user, and never what a symbolic link in its place names.

    Returns:
        Its descriptor.

    Raises:
        OSError: It cannot be opened; ELOOP for a symbolic link; EBADF with the reason as text for a
            file of another user, one that others may write, or no regular file.
    """
    # O_NONBLOCK: to open a FIFO must not wait for its writer.
    guard = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | guard, 0o600)
    fault = fault_of_file(os.fstat(descriptor), secret=False)
    if fault:
        os.close(descriptor)
        raise OSError(errno.EBADF, fault)
    return descriptor


def _record(*changes: tuple[bytes, str, bytes]) -> bytes:
    """Returns the record of changes that are made together: action, key and value of each."""
    parts = []
    for action, key, value in changes:
        name = key.encode()
        parts += [KEY.pack(action, len(name), len(value)), name, value]
    body = b"".join(parts)
    return HEAD.pack(zlib.crc32(body), len(body)) + body


def _changes(body: bytes) -> Iterator[tuple[bytes, str, bytes]]:
    """Yields the changes of a record."""
    start = 0
    while start < len(body):
        action, key_size, size = KEY.unpack_from(body, start)
        start += KEY.size
        end = start + key_size + size
        yield action, body[start : start + key_size].decode(), body[start + key_size : end]
        start = end


def _whole_body(data: bytes, start: int) -> bytes | None:
    """Returns the body of the record at `start`, or None if it is not whole (yet)."""
    if len(data) < start + HEAD.size:
        return None
    checksum, length = HEAD.unpack_from(data, start)
    body = data[start + HEAD.size : start + HEAD.size + length]
    whole = len(body) == length and zlib.crc32(body) == checksum
    return body if whole else None


def _explain(path: str, error: OSError) -> str:
    """Returns the problem with a store's file, in words, and the remedy."""
    directory = os.path.dirname(path)
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            problem = f"there is no directory {directory!r}; make it, or name another file"
        case errno.EISDIR:
            problem = "it is a directory; name a file in it"
        case errno.ELOOP:
            problem = "it is a symbolic link; name the file itself"
        case errno.EBADF:
            problem = f"{error.strerror}; name a file that only this user may write"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            problem = f"{error.strerror}; name a file that this user may read and write"
        case errno.ENOLCK | errno.EOPNOTSUPP | errno.ENOSYS:
            problem = "its file system has no locks; name a file on another one"
        case _:
            problem = str(error.strerror or error)
    return f"cannot use {path!r} as a store: {problem}"


# -- the endpoint file, in which rank 0 names its coordinator: `init_method="file:///path"` ------
#
# The file is replaced as a whole, so it is never read half-written. A file left by an earlier job
# names a coordinator that is gone: its reader looks again until rank 0 of this job has replaced it.

JOB_MAGIC = "telegrad job 1"
LONGEST = 4096  # bytes; an address and some words


def published_text(published: Published) -> str:
    """Returns the text of the endpoint file."""
    return f"{JOB_MAGIC}\nendpoint {published.endpoint}\nby {published.by}\n"


def read_published(text: str) -> Published | None:
    """Reads the text of an endpoint file; returns None if it is something else."""
    first, *lines = text.splitlines() or [""]
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    if first != JOB_MAGIC or not {"endpoint", "by"} <= set(fields):
        return None
    return Published(fields["endpoint"], fields["by"])


@final
class EndpointFile(EndpointSource):
    """The endpoint file, for the worker that writes it and for those that read it.

    Args:
        path: The absolute path; its directory must exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = repr(path)
        self.waiting = f"rank 0 to write {path!r}"
        self.unread = f"has not written {path!r}"
        self.remedy = "start it, and check that all workers see the same file"
        self._mine: Published | None = None

    def publish(self, endpoint: str) -> None:
        """Writes the coordinator's endpoint, over the file of any earlier job.

        Raises:
            RendezvousError: The file cannot be written, or is something else.
        """
        self.read()
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        by = f"process {os.getpid()} on {socket.gethostname()} at {now}"
        self._mine = Published(endpoint, by)
        draft = f"{self.path}.{secrets.token_hex(4)}"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with open(descriptor, "w") as file:
                    file.write(published_text(self._mine))
                os.replace(draft, self.path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
                raise
        except OSError as error:
            raise self._error(error, "name a path that rank 0 may write to") from error

    def read(self) -> Published | None:
        """Returns the content of the file; None if nothing was written yet.

        Raises:
            RendezvousError: The file cannot be read, its directory does not exist, or the file is
                something else.
        """
        directory = os.path.dirname(self.path)
        try:
            # Opening the directory makes a network file system look at it anew.
            os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RendezvousError(
                f"init_method names {self.path!r}, and there is no directory {directory!r} here; "
                "make it, or name a file in one that all workers see"
            ) from error
        except PermissionError:
            pass  # a directory that cannot be opened may still be passed through
        try:
            with open(open_own_file(self.path, os.O_RDONLY), "rb") as file:
                text = file.read(LONGEST).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            remedy = "name a file that all workers may read, and only this user may write"
            raise self._error(error, remedy) from error
        published = read_published(text)
        if published is None and text:
            raise RendezvousError(
                f"init_method names {self.path!r}, which is something else than what rank 0 "
                f"writes (it begins with {text[:16]!r}); name a file of its own"
            )
        return published

    def withdraw(self) -> None:
        """Removes what `publish` wrote, unless another job has written since; idempotent."""
        if self._mine is None:
            return
        aside = f"{self.path}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            os.rename(self.path, aside)
            with open(aside) as file:
                mine = read_published(file.read()) == self._mine
            if not mine:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self.path)
            os.unlink(aside)
        self._mine = None

    def unreached(self, published: Published, problem: str) -> str:
        """Returns what to say of an endpoint from here that has a problem, and the remedy."""
        return (
            f"{self.path!r} says {published.endpoint} (written by {published.by}), last error "
            f"there: {problem}; if an earlier job has left it, start rank 0 of this one, which "
            "writes it anew"
        )

    def _error(self, error: OSError, remedy: str) -> RendezvousError:
        reason = error.strerror or str(error)
        if error.errno == errno.ELOOP:
            reason = "it is a symbolic link"
        return RendezvousError(f"init_method names {self.path!r}: {reason}; {remedy}")
