"""Streams and events of the stand-in for CuPy: the order of work, and the waits of the host.

Every piece of work has a number in its stream. A stream knows, for each stream, up to which number
the work there is done before its own next piece: a vector clock. An event keeps a copy of a clock.

    a stream waits for an event     it learns what the event knows
    the host waits                  all streams learn it
    the null stream                 waits for streams without non_blocking, and they for it

A race is an array that a stream uses although it does not come after the array's last write; or
memory that goes back to the pool while a stream may still use it, other than the one that it was
allocated in (CuPy's pool gives it to the next array of that one).

Work is done at once, when it is launched; but a Kernel is done later. What is launched behind one
waits for it, in the thread that launches it. What reads on a stream that does not come after it
finds what was there before.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.gpu.stand_in.stand_in_memory import finish, queued

__all__ = [
    "THREAD",
    "Event",
    "Kernel",
    "Memory",
    "Stream",
    "Watch",
    "current_stream",
    "host_waits",
    "stream_at",
    "wait_for_kernels",
    "watched",
]

Clock = dict[int, int]


@dataclass(slots=True, eq=False)
class Watch:
    """What happened in a `with watched()` block, in all threads."""

    waits: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)


_LOCK = threading.RLock()
_WATCHES: list[Watch] = []
_NUMBERS = itertools.count(16)
_CLOCKS: dict[int, Clock] = {0: {}}
_BLOCKING = {0}
_HOST: Clock = {}
THREAD = threading.local()
"""What each thread has as its current `number` of device, and `streams`."""


@contextmanager
def watched() -> Iterator[Watch]:
    """Yields the lists of waits and races, which grow meanwhile."""
    watch = Watch()
    _WATCHES.append(watch)
    try:
        yield watch
    finally:
        _WATCHES.remove(watch)


def _learn(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


def _up_to_date(stream: int) -> Clock:
    clock = _CLOCKS.setdefault(stream, {})
    if len(_CLOCKS) > 1:
        if stream in _BLOCKING:
            for other in _BLOCKING if stream == 0 else (0,):
                _learn(clock, _CLOCKS[other])
        _learn(clock, _HOST)
    return clock


def _launched(stream: int) -> tuple[int, int]:
    clock = _up_to_date(stream)
    clock[stream] = clock.get(stream, 0) + 1
    return stream, clock[stream]


def _report(race: str) -> None:
    for watch in _WATCHES:
        watch.races.append(race)


class Memory:
    """The memory of an array and of its views.

    Args:
        shared: True for the host's, which nothing orders.
        lent: True for memory that was there before the array, which writes nothing when it is made.
    """

    __slots__ = ("__weakref__", "home", "shared", "used", "written")

    def __init__(self, *, shared: bool = False, lent: bool = False) -> None:
        self.shared = shared
        with _LOCK:
            stream = current_stream().ptr
            self.written = (stream, 0) if lent else _launched(stream)
            self.home = self.written[0]
            self.used: Clock = {}

    def use(self) -> None:
        """Notes that work in the current stream uses it."""
        with _LOCK:
            stream, (writer, number) = current_stream().ptr, self.written
            clock = _up_to_date(stream)
            if self.shared:
                return
            if clock.get(writer, 0) < number:
                _report(f"stream {stream} uses what stream {writer} may not have written yet")
            if stream != self.home:
                # A piece of work of its own: a kernel need not write to what counts its writes.
                _, self.used[stream] = _launched(stream)

    def write(self) -> None:
        """Notes that work in the current stream writes to it."""
        with _LOCK:
            self.use()
            self.written = _launched(current_stream().ptr)

    def read(self) -> None:
        """Notes that a copy in the current stream, which is waited for later, reads it."""
        with _LOCK:
            self.use()
            _launched(current_stream().ptr)

    def __del__(self) -> None:
        if not self.used:
            return
        with _LOCK:
            clock = _up_to_date(self.home)
            for stream, number in self.used.items():
                if stream in _CLOCKS and clock.get(stream, 0) < number:
                    _report(f"stream {self.home} gets memory back that stream {stream} may use")


def host_waits(what: str, memory: Memory) -> None:
    """Notes that the host waits for a copy from a memory in the current stream."""
    wait_for_kernels()
    with _LOCK:
        memory.read()
        _wait(what, dict(_CLOCKS[current_stream().ptr]))


def _wait(what: str, clock: Clock) -> None:
    with _LOCK:
        _learn(_HOST, clock)
        for watch in _WATCHES:
            watch.waits.append(what)


class Kernel:
    """Work that takes its time, as NCCL's does until all ranks have come.

    Args:
        stream: Its stream.
    """

    def __init__(self, stream: Stream) -> None:
        self._after = stream.kernels
        self._done = threading.Event()
        with _LOCK:
            _launched(stream.ptr)
            _UNFINISHED.add(self)
        stream.add(self)

    @property
    def ready(self) -> bool:
        """Whether all before it are done."""
        return all(each.done for each in self._after)

    def wait_before(self) -> None:
        """Waits for all before it."""
        for each in self._after:
            each.wait()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def finish(self) -> None:
        self._done.set()
        with _LOCK:
            _UNFINISHED.discard(self)

    def wait(self) -> None:
        if not self._done.wait(MOST_SECONDS):
            raise AssertionError("a kernel that never ends is waited for")


MOST_SECONDS = 60.0
_UNFINISHED: set[Kernel] = set()


def wait_for_kernels() -> None:
    """Waits for the kernels before the next work in the current stream."""
    if _UNFINISHED:
        for each in current_stream().kernels:
            each.wait()


class Stream:
    """As CuPy's: of the device that is current when it is made."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = 0 if null else next(_NUMBERS)
        self.device_id = -1 if null else getattr(THREAD, "number", 0)
        self._kernels: dict[int, list[Kernel]] = {}  # by device, as all have one null stream
        _BY_POINTER[self.ptr] = self
        with _LOCK:
            if not non_blocking:
                _BLOCKING.add(self.ptr)
            _CLOCKS.setdefault(self.ptr, {})

    @property
    def kernels(self) -> list[Kernel]:
        """Those that are not done, on the current device."""
        number = getattr(THREAD, "number", 0)
        with _LOCK:
            left = [each for each in self._kernels.get(number, ()) if not each.done]
            self._kernels[number] = left
            return list(left)

    def add(self, *kernels: Kernel) -> None:
        """Puts kernels before the next work."""
        with _LOCK:
            self._kernels.setdefault(getattr(THREAD, "number", 0), []).extend(kernels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Stream:
        current = getattr(THREAD, "number", 0)
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({current})"
            )
        _stack().append((current, self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _stack().pop()

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        with _LOCK:
            _learn(_CLOCKS[self.ptr], event.clock)
        self.add(*event.kernels)

    def synchronize(self) -> None:
        finish(queued())
        for each in self.kernels:
            each.wait()
        _wait("synchronize", dict(_CLOCKS[self.ptr]))

    def __del__(self) -> None:
        with _LOCK:
            if self.ptr in _BLOCKING:
                _BLOCKING.discard(self.ptr)
                _learn(_CLOCKS[0], _CLOCKS.get(self.ptr, {}))
            _CLOCKS.pop(self.ptr, None)


_BY_POINTER: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()


def stream_at(pointer: int) -> Stream:
    """Returns the stream of a `ptr`."""
    return _BY_POINTER[pointer]


def _stack() -> list[tuple[int, Stream]]:
    found: list[tuple[int, Stream]] | None = getattr(THREAD, "streams", None)
    if found is None:
        found = THREAD.streams = []
    return found


def current_stream(device_id: int = -1) -> Stream:
    """Returns this thread's current stream of a device, of the current one by default."""
    number = getattr(THREAD, "number", 0) if device_id == -1 else device_id
    for device, stream in reversed(_stack()):
        if device == number:
            return stream
    return Stream.null


class Event:
    """As CuPy's; it knows what its stream had begun when it was recorded."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.time = 0.0
        self.before = -1
        self.clock: Clock = {}
        self.kernels: Sequence[Kernel] = ()

    @property
    def done(self) -> bool:
        return all(each.done for each in self.kernels)

    def record(self, stream: Stream | None = None) -> None:
        self.time = time.perf_counter()
        self.before = queued()
        recorded = stream or current_stream()
        self.kernels = recorded.kernels
        with _LOCK:
            self.clock = dict(_up_to_date(recorded.ptr))

    def synchronize(self) -> None:
        if self.before < 0:
            raise AssertionError("an event that was never recorded is waited for")
        finish(self.before)
        for each in self.kernels:
            each.wait()
        _wait("event.synchronize", self.clock)


Stream.null = Stream(null=True)
