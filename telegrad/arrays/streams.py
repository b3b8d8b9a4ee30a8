"""The CUDA streams of one pass of work that several threads share, ordered by events.

    streams that made its inputs ──event──▶ one stream per GPU, in any thread ──event──▶ readers

The host waits for nothing. CuPy's pool keeps freed memory for the next array of the stream that it
was allocated in, and orders nothing else. So memory of other streams is kept until those streams
wait for the pass, too.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, final

from telegrad.arrays.backend import is_cupy

Place: TypeAlias = tuple[int, Any]
"""The number of a GPU, and one of its streams."""


def current_place(array: Any) -> Place | None:
    """Returns an array's GPU, and the stream in which this thread works there; None on the host."""
    if not is_cupy(array):
        return None
    made: Any = array
    cuda: Any = importlib.import_module("cupy").cuda
    number = int(made.device.id)
    return number, cuda.get_current_stream(number)


@final
class Streams:
    """The streams of one pass: one for each GPU. Any thread may call the methods.

    The streams start behind the present work of all `made`, and of the calling thread's.

    Args:
        made: The places where inputs of the pass were made. The first one of each GPU becomes the
            stream of the pass there; the first GPU becomes the current one.
    """

    def __init__(self, made: Iterable[Place]) -> None:
        self._cuda: Any = importlib.import_module("cupy").cuda
        self._lock = threading.RLock()  # guards the lists of what was lent, and who reads
        self._streams: dict[int, Any] = {}
        self._others: list[Place] = []
        self._lent: list[tuple[Place, object]] = []
        self._readers: list[Place] = []
        places = list(made)
        for number, stream in places:
            self._streams.setdefault(number, stream)
        self.add(places)
        for place in self._current():
            self._order(place, self._of(place))

    @property
    def several(self) -> bool:
        """True if inputs were made in more than one stream of a GPU."""
        return bool(self._others)

    def add(self, places: Iterable[Place]) -> None:
        """Adds places where inputs of the pass were made; before it starts."""
        for number, stream in places:
            place = number, stream
            if self._streams.get(number, stream) != stream and place not in self._others:
                self._others.append(place)
                self._order(place, self._of(place))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes the streams, and the first GPU, those of this thread inside the block."""
        with ExitStack() as stack:
            for number, stream in reversed(self._streams.items()):
                stack.enter_context(self._cuda.Device(number))
                stack.enter_context(stream)
            yield

    def lend(self, place: Place, arrays: object) -> None:
        """Keeps arrays that were made in `place` until `finish`; the pass uses them."""
        if place[0] in self._streams:
            self._order(place, self._of(place))
            with self._lock:
                self._lent.append((place, arrays))

    def lend_here(self, arrays: object) -> None:
        """Keeps arrays that this thread has made in its current streams until `finish`."""
        for place in self._current():
            self.lend(place, arrays)

    def finish(self) -> None:
        """Ends the pass: the streams of its inputs go on behind it. Legal more than once."""
        with self._lock:
            lent, self._lent = self._lent, []
        for place in (*self._others, *(place for place, _ in lent)):
            self._order(self._of(place), place)

    def wait(self) -> None:
        """Makes the streams that are current in this thread go on behind the pass so far."""
        for place in self._current():
            self._order(self._of(place), place)
            with self._lock:
                if place not in self._readers:
                    self._readers.append(place)

    def end_reads(self) -> None:
        """Makes the streams of the pass go on behind those that have read its results.

        Then the memory of the results may go back to the pool.
        """
        with self._lock:
            readers, self._readers = self._readers, []
        for place in readers:
            self._order(place, self._of(place))

    def _current(self) -> list[Place]:
        return [(number, self._cuda.get_current_stream(number)) for number in self._streams]

    def _of(self, place: Place) -> Place:
        return place[0], self._streams[place[0]]

    def _order(self, before: Place, after: Place) -> None:
        _order(self._cuda, before, after)


def follow(places: Iterable[Place]) -> None:
    """Makes the current streams of this thread go on behind the present work in `places`."""
    cuda: Any = importlib.import_module("cupy").cuda
    for place in places:
        _order(cuda, place, (place[0], cuda.get_current_stream(place[0])))


@contextmanager
def working_in(place: Place | None) -> Iterator[None]:
    """Does the block's work on a GPU in `place`, in whatever thread it runs; None changes nothing.

    The block comes after the present work of this thread, and of the null stream, in which other
    threads run callbacks. Both go on behind the block.
    """
    if place is None:
        yield
        return
    number, _ = place
    streams = Streams([place, (number, importlib.import_module("cupy").cuda.Stream.null)])
    try:
        with streams.entered():
            yield
    finally:
        streams.finish()
        streams.wait()


def _order(cuda: Any, before: Place, after: Place) -> None:
    if before[1] != after[1]:
        with cuda.Device(before[0]):
            event = cuda.Event(disable_timing=True)
            event.record(before[1])
            after[1].wait_event(event)
