"""A communicator of NCCL, through CuPy: operations between GPUs, on a stream of its own.

    caller's stream         ── writes the array ──●                    ┌── reads the result ──
                                                  │ event        event │
    communicator's stream   ──────────────────────▼── NCCL's kernel ───●──

No method waits for a GPU but `Moment.wait`, and those that make and end a communicator. Arrays are
contiguous, have one axis and lie on the GPU of the communicator.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

import numpy as np

from telegrad.errors import InvalidUseError
from telegrad.types import Array, DTypeLike, Shape

UNIQUE_ID_BYTES: Final = 128
# An operation that is enqueued in another thread takes microseconds, unless it waits for a rank.
ENQUEUE_SECONDS: Final = 1.0

# The numbers of NCCL's header nccl.h.
_TYPES: Final = {
    "int8": 0,
    "uint8": 1,
    "bool": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_OPERATIONS: Final = {"sum": 0, "product": 1, "max": 2, "min": 3, "avg": 4}
_OF_BOOL: Final = {"max": 2, "bor": 2, "min": 3, "band": 3}  # of bytes that are 0 or 1
_OF_COMPLEX: Final = {"sum": 0, "avg": 4}  # of the two parts


def _operations(dtype: np.dtype[Any]) -> Mapping[str, int]:
    if dtype.kind == "c":
        return _OF_COMPLEX if dtype.itemsize in (8, 16) else {}
    return _OF_BOOL if dtype.kind == "b" else _OPERATIONS if dtype.name in _TYPES else {}


def can_reduce(operation: str, dtype: DTypeLike) -> bool:
    """Returns True if NCCL has a reduction for items of a dtype.

    Args:
        operation: `sum`, `avg`, `product`, `min`, `max`, `band`, `bor` or `bxor`.
        dtype: The dtype.

    >>> can_reduce("sum", np.complex64), can_reduce("product", np.complex64)
    (True, False)
    >>> can_reduce("sum", np.int16)
    False
    """
    return operation in _operations(np.dtype(dtype))


def has_nccl() -> bool:
    """Returns True if CuPy is installed and finds NCCL."""
    try:
        nccl = _nccl()
        return bool(nccl.available) and int(nccl.get_version()) > 0
    except (ImportError, RuntimeError):
        return False


def _nccl() -> Any:
    """Returns CuPy's module, which importing CuPy alone does not load."""
    return importlib.import_module("cupy.cuda.nccl")


def new_unique_id() -> bytes:
    """Returns the bytes by which the ranks of a new communicator find each other.

    Raises:
        RuntimeError: NCCL finds no network.
    """
    made: Any = _nccl().get_unique_id()
    return made if isinstance(made, bytes) else bytes(each & 0xFF for each in made)


@final
class Moment:
    """A moment in the work of the current stream: all that was enqueued so far is done.

    Args:
        number: The number of the GPU.

    Attributes:
        number: The number of the GPU.
        stream: The stream.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._cuda: Any = importlib.import_module("cupy").cuda
        with self._cuda.Device(number):
            self.stream: Any = self._cuda.get_current_stream()
            self._event = self._cuda.Event(block=True, disable_timing=True)
            self._event.record(self.stream)

    @property
    def passed(self) -> bool:
        """True if the GPU has come to this moment."""
        return bool(self._event.done)

    def order(self, stream: Any = None) -> None:
        """Lets a stream wait for this moment: None for the current one of this thread."""
        with self._cuda.Device(self.number):
            waiting = self._cuda.get_current_stream() if stream is None else stream
            waiting.wait_event(self._event)

    def wait(self) -> None:
        """Blocks this thread until the GPU has come to this moment."""
        self._event.synchronize()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the GPU and the stream the current ones of this thread inside a block."""
        with self._cuda.Device(self.number), self.stream:
            yield


@final
class Communicator:
    """One rank's end of the connections between some GPUs.

    The constructor returns once all ranks have called it. Each rank must call the same methods in
    the same order, with arrays of the same sizes; otherwise NCCL's kernels never end.

    Args:
        size: The number of ranks.
        unique_id: The bytes of `new_unique_id`, the same on all ranks.
        rank: This rank.
        number: The number of the GPU.

    Raises:
        RuntimeError: NCCL cannot connect the GPUs; two ranks on one GPU, for instance.
    """

    def __init__(self, size: int, unique_id: bytes, rank: int, number: int) -> None:
        cupy: Any = importlib.import_module("cupy")
        self._cuda: Any = cupy.cuda
        self._rank = rank
        self._number = number
        self._state = threading.Condition()  # guards the two below
        self._enqueuing = 0
        self._over = False
        newer = int(str(cupy.__version__).split(".", maxsplit=1)[0]) >= 14
        known: Any = unique_id if newer else tuple(np.frombuffer(unique_id, np.int8).tolist())
        with self._cuda.Device(number):
            self._stream: Any = self._cuda.Stream(non_blocking=True)
            self._handle: Any = _nccl().NcclCommunicator(size, known, rank)

    @property
    def over(self) -> bool:
        """True if it was aborted or destroyed."""
        return self._over

    @contextmanager
    def after(self, *moments: Moment) -> Iterator[None]:
        """Runs a block whose work is enqueued here, after some moments of other streams.

        Raises:
            InvalidUseError: The communicator is over.
        """
        with self._state:
            if self._over:
                raise InvalidUseError("the communicator of NCCL was aborted; make a new group")
            self._enqueuing += 1
        try:
            for each in moments:
                each.order(self._stream)
            with self._cuda.Device(self._number), self._stream:
                yield
        finally:
            with self._state:
                self._enqueuing -= 1
                self._state.notify_all()

    def now(self) -> Moment:
        """Returns the moment at which all that was enqueued here is done."""
        with self._cuda.Device(self._number), self._stream:
            return Moment(self._number)

    # Operations, inside a block of `after`.

    def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        there = _address(flat)
        self._handle.broadcast(there, there, *_octets(flat), root, self._stream.ptr)

    def all_reduce(self, flat: Array, operation: str) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        there = _address(flat)
        self._handle.allReduce(there, there, *_items(flat, operation), self._stream.ptr)

    def reduce(self, flat: Array, operation: str, root: int, out: Array | None = None) -> None:
        """Writes the reduction over all ranks to `out` at rank `root`; None for `flat` itself."""
        there = _address(flat)
        target = there if out is None else _address(out)
        self._handle.reduce(there, target, *_items(flat, operation), root, self._stream.ptr)

    def all_gather(self, flat: Array, out: Array) -> None:
        """Writes the arrays of all ranks, which have one size, to `out` in their order."""
        count, kind = _octets(flat)
        self._handle.allGather(_address(flat), _address(out), count, kind, self._stream.ptr)

    def reduce_scatter(self, flat: Array, out: Array, operation: str) -> None:
        """Writes the reduction of this rank's part of `flat`, one of equal parts, to `out`."""
        there = _address(flat), _address(out)
        self._handle.reduceScatter(*there, *_items(out, operation), self._stream.ptr)

    def reduce_parts(self, parts: Sequence[Array], out: Array, operation: str) -> None:
        """Writes the reduction of the parts that all ranks have for this one to `out`."""
        with self._together():
            for r, part in enumerate(parts):
                if part.nbytes:
                    self.reduce(part, operation, r, out if r == self._rank else None)

    def exchange(self, sent: Mapping[int, Array], received: Mapping[int, Array]) -> None:
        """Sends arrays to ranks, and writes into arrays what ranks send, all at once.

        Both ends know the sizes. What is for this rank is copied.
        """
        own, to_own = sent.get(self._rank), received.get(self._rank)
        if own is not None and to_own is not None:
            to_own[...] = own
        with self._together():
            for r, array in sent.items():
                if r != self._rank and array.nbytes:
                    self._handle.send(_address(array), *_octets(array), r, self._stream.ptr)
            for r, array in received.items():
                if r != self._rank and array.nbytes:
                    self._handle.recv(_address(array), *_octets(array), r, self._stream.ptr)

    @contextmanager
    def _together(self) -> Iterator[None]:
        _nccl().groupStart()
        try:
            yield
        finally:  # NCCL counts the starts of each thread
            _nccl().groupEnd()

    # Its end.

    def check(self) -> None:
        """Raises RuntimeError if an operation has failed, at this rank or at another."""
        with self._state:
            if not self._over:
                self._handle.check_async_error()

    def abort(self) -> None:
        """Ends all kernels that run, and the communicator; its arrays are undefined. Idempotent."""
        self._end("abort")

    def destroy(self) -> None:
        """Ends the communicator, whose kernels must be done. Idempotent."""
        self._end("destroy")

    def _end(self, how: str) -> None:
        with self._state:
            if self._over:
                return
            self._over = True
            # A thread that enqueues may wait for a rank that is gone: `abort` ends that wait.
            self._state.wait_for(lambda: not self._enqueuing, ENQUEUE_SECONDS)
        getattr(self._handle, how)()


def _address(array: Array) -> int:
    data: Any = array.data
    return int(data.ptr)


def _octets(flat: Array) -> tuple[int, int]:
    return flat.nbytes, _TYPES["uint8"]


def _items(flat: Array, operation: str) -> tuple[int, int, int]:
    """Returns NCCL's count, type and operation for a reduction."""
    code = _operations(flat.dtype)[operation]
    if flat.dtype.kind == "c":
        return 2 * flat.size, _TYPES[f"float{4 * flat.dtype.itemsize}"], code
    return flat.size, _TYPES[flat.dtype.name], code


def empty_beside(moment: Moment, shape: Shape, dtype: DTypeLike) -> Array:
    """Returns a new array for the stream of a moment, whose pool of memory it comes from."""
    with moment.current():
        made: Array = importlib.import_module("cupy").empty(shape, dtype)
    return made
