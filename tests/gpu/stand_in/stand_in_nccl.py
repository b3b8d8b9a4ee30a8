"""The stand-in for `cupy.cuda.nccl`, between threads: as strict as NCCL, or stricter.

all ranks have enqueued their call, and come to it on their streams  ─▶  the data moves
a rank never does                                                    ─▶  the kernel never ends
a rank calls something else, or with another size    AssertionError: NCCL would hang, or worse
memory of the host, or of another device             AssertionError
memory that another stream may still write           a race (stand_in_streams.py)
two ranks on one device                              NcclError at all ranks, as NCCL's
abort                                                ends this rank's kernels; garbage is left

`stand_in_nccl_far` lets ranks be in several processes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import types
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from telegrad.collectives import ReduceOp
from telegrad.collectives.reduction import finish
from tests.gpu.stand_in.stand_in_devices import current_device
from tests.gpu.stand_in.stand_in_memory import memory_at
from tests.gpu.stand_in.stand_in_streams import Kernel, Memory, current_stream, stream_at

__all__ = [
    "GARBAGE",
    "LOCK",
    "PARTS",
    "WORLDS",
    "NcclError",
    "Part",
    "World",
    "advance",
    "break_connections",
    "connected",
    "nccl",
    "release",
]

UNIQUE_ID_BYTES = 128
GARBAGE = 0xDD
MOST_SECONDS = 60.0
TYPES: list[Any] = [
    np.int8,
    np.uint8,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
]
SUM, PRODUCT, MAX, MIN, AVG = range(5)
UFUNCS: dict[int, Any] = {
    SUM: np.add,
    PRODUCT: np.multiply,
    MAX: np.maximum,
    MIN: np.minimum,
    AVG: np.add,
}


class NcclError(RuntimeError):
    """As CuPy's."""


@dataclass(eq=False, slots=True)
class Part:
    """One call at one rank: it reads and writes memory, which it keeps.

    Attributes:
        kernel: The kernel that runs it.
        said: What has to be the same on all ranks.
        source: The memory that is read, as bytes.
        target: The memory that is written; None for none.
    """

    kernel: Kernel
    said: tuple[Any, ...]
    source: Any
    target: Any
    done: bool = False


@dataclass(eq=False)
class World:
    """The ranks of one communicator."""

    size: int = 0
    devices: dict[int, int] = field(default_factory=dict)
    failure: str = ""
    rounds: defaultdict[int, dict[int, Part]] = field(default_factory=lambda: defaultdict(dict))
    counts: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    sent: defaultdict[tuple[int, int], deque[Part]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    received: defaultdict[tuple[int, int], deque[Part]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def join(self, size: int, rank: int, device: int) -> None:
        """Waits for all ranks."""
        with LOCK:
            if rank in self.devices or not 0 <= rank < size:
                raise AssertionError(f"rank {rank} joins twice, or is none of {size}")
            self.size = size
            self.devices[rank] = device
            LOCK.notify_all()
            complete = LOCK.wait_for(
                lambda: len(self.devices) == size or self.failure, MOST_SECONDS
            )
            if not complete or self.failure:
                raise NcclError(f"NCCL_ERROR_SYSTEM_ERROR: {self.failure or 'a rank is missing'}")
            if len(set(self.devices.values())) < size:
                raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")

    # The lock is held in these.

    def put(self, rank: int, pair: tuple[int, int] | None, part: Part) -> None:
        """Adds a call of a rank: of all ranks, or the sending or receiving end of a message."""
        if pair is not None:
            queues = self.sent if part.target is None else self.received
            queues[pair].append(part)
            return
        i = self.counts[rank]
        self.counts[rank] += 1
        others = [each.said for each in self.rounds[i].values()]
        if any(each != part.said for each in others):
            raise AssertionError(f"NCCL would hang: {part.said} beside {others}")
        self.rounds[i][rank] = part

    def drop(self, rank: int) -> None:
        """Ends all calls of a rank, which aborts."""
        for parts in self.rounds.values():
            _drop(parts.pop(rank, None))
        for queues in (self.sent, self.received):
            for (source, to), queue in queues.items():
                if rank == (source if queues is self.sent else to):
                    for part in queue:
                        _drop(part)
                    queue.clear()
        self.size = -1  # no further round is complete
        self.devices.pop(rank, None)
        advance()

    def leave(self, rank: int) -> None:
        """Takes a rank out, whose calls must be done."""
        self.devices.pop(rank, None)
        if any(rank in parts for parts in self.rounds.values()):
            raise AssertionError("a communicator is destroyed while its kernels run")


LOCK = threading.Condition()  # guards all below
WORLDS: dict[bytes, World] = {}
PARTS: dict[Kernel, list[Part]] = {}
_COLLECTED = threading.local()  # the calls between groupStart and groupEnd


def find(unique_id: bytes) -> Any:
    """Returns the world of an id of another process; `stand_in_nccl_far` replaces this."""
    return World(failure="no such id here")


def connected() -> int:
    """How many ranks of communicators there are."""
    with LOCK:
        return sum(len(world.devices) for world in WORLDS.values())


def break_connections(words: str) -> None:
    """Lets all communicators find an error when they are asked for it."""
    with LOCK:
        for world in WORLDS.values():
            world.failure = words


def release() -> None:
    """Ends all waits and kernels, and forgets all communicators."""
    with LOCK:
        for world in WORLDS.values():
            world.failure = "released"
        WORLDS.clear()
        for kernel in PARTS:
            kernel.finish()
        PARTS.clear()
        LOCK.notify_all()


def get_unique_id() -> bytes:
    made = os.urandom(UNIQUE_ID_BYTES)
    with LOCK:
        WORLDS[made] = World()
    return made


def group_start() -> None:
    _COLLECTED.depth = getattr(_COLLECTED, "depth", 0) + 1
    if _COLLECTED.depth == 1:
        _COLLECTED.calls = []


def group_end() -> None:
    if not getattr(_COLLECTED, "depth", 0):
        raise NcclError("NCCL_ERROR_INVALID_USAGE: groupEnd without groupStart")
    _COLLECTED.depth -= 1
    if not _COLLECTED.depth:
        _enqueue(_COLLECTED.calls)


# What a call does with the queues of its world, when its kernel is known.
_Call = tuple[int, Callable[[Kernel], Part]]


def _enqueue(calls: list[_Call]) -> None:
    """Makes one kernel of all calls of a group that are on one stream."""
    by_stream: dict[int, list[Callable[[Kernel], Part]]] = {}
    for pointer, call in calls:
        by_stream.setdefault(pointer, []).append(call)
    with LOCK:
        for pointer, made in by_stream.items():
            kernel = Kernel(stream_at(pointer))
            PARTS[kernel] = []
            for each in made:
                PARTS[kernel].append(each(kernel))
        advance()


def advance() -> None:
    """Runs all that can run; the lock is held."""
    moved = True
    while moved:
        moved = False
        for world in WORLDS.values():
            for i, parts in list(world.rounds.items()):
                if len(parts) == world.size and all(p.kernel.ready for p in parts.values()):
                    del world.rounds[i]
                    _run_round([parts[r] for r in range(world.size)])
                    moved = True
            for pair, sent in world.sent.items():
                received = world.received[pair]
                while sent and received and sent[0].kernel.ready and received[0].kernel.ready:
                    _hand_over(sent.popleft(), received.popleft())
                    moved = True
        for kernel, made in list(PARTS.items()):
            if all(each.done for each in made):
                del PARTS[kernel]
                kernel.finish()
                moved = True
    LOCK.notify_all()


def _drop(part: Part | None) -> None:
    if part is not None:
        part.done = True
        if part.target is not None:
            part.target[...] = GARBAGE


def _hand_over(sent: Part, received: Part) -> None:
    if sent.said != received.said:
        raise AssertionError(f"a rank sends {sent.said} to one that receives {received.said}")
    received.target[...] = sent.source
    sent.done = received.done = True


def _run_round(parts: list[Part]) -> None:
    verb, kind, operation, root = parts[0].said[:4]
    sources = [part.source.view(TYPES[kind]) for part in parts]
    if verb == "broadcast":
        results = [sources[root].copy()] * len(parts)
    elif verb == "allGather":
        results = [np.concatenate(sources)] * len(parts)
    else:
        with np.errstate(all="ignore"):
            total = reduce(UFUNCS[operation], sources)
            if operation == AVG:
                finish(ReduceOp.AVG, total, len(parts))
        scatters = verb == "reduceScatter"
        results = np.split(total, len(parts)) if scatters else [total] * len(parts)
    for r, (part, result) in enumerate(zip(parts, results, strict=True)):
        if verb != "reduce" or r == root:
            part.target.view(TYPES[kind])[...] = result
        part.done = True


class NcclCommunicator:
    def __init__(self, ndev: int, commId: Any, rank: int) -> None:
        if not isinstance(commId, bytes) or len(commId) != UNIQUE_ID_BYTES:
            raise ValueError(f"commId length {len(commId)} != {UNIQUE_ID_BYTES}.")
        self._rank = rank
        self._device = current_device()
        self._over = False
        with LOCK:
            known = WORLDS.get(commId)
        self._world = find(commId) if known is None else known
        self._size = ndev
        self._world.join(ndev, rank, self._device)

    # The names and the order of arguments are CuPy's.

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._collective("allReduce", sendbuf, recvbuf, count, count, datatype, stream, op)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        self._collective("reduce", sendbuf, recvbuf, count, count, datatype, stream, op, root)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._collective("broadcast", sendbuff, recvbuff, count, count, datatype, stream, root=root)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        whole = count * self._size
        self._collective("allGather", sendbuf, recvbuf, count, whole, datatype, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        whole = recvcount * self._size
        self._collective("reduceScatter", sendbuf, recvbuf, whole, recvcount, datatype, stream, op)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message((self._rank, peer), sendbuf, count, datatype, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._message((peer, self._rank), recvbuf, count, datatype, stream)

    def check_async_error(self) -> None:
        self._check_open()
        with LOCK:
            if self._world.failure:
                raise NcclError(f"NCCL_ERROR_REMOTE_ERROR: {self._world.failure}")

    def abort(self) -> None:
        with LOCK:
            self._over = True
            self._world.drop(self._rank)

    def destroy(self) -> None:
        with LOCK:
            self._over = True
            self._world.leave(self._rank)

    def _check_open(self) -> None:
        if self._over:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")

    def _memory(self, pointer: int, nbytes: int, *, stream: int, written: bool) -> Any:
        """Returns the bytes at an address, which is one of the device, for work in a stream."""
        array, number, memory = memory_at(pointer)
        if current_stream().ptr != stream or not isinstance(memory, Memory):
            raise AssertionError("NCCL's work is in another stream than the current one")
        memory.write() if written else memory.use()
        if number != self._device:
            raise AssertionError(f"memory of device {number} on device {self._device}")
        if not array.flags.c_contiguous or array.nbytes < nbytes:
            raise AssertionError(f"{nbytes} bytes of {array.nbytes}, or of an array with strides")
        there: Any = (ctypes.c_uint8 * nbytes).from_address(pointer)
        there.kept = array
        return np.ctypeslib.as_array(there)

    def _collective(
        self,
        verb: str,
        source: int,
        target: int,
        count: int,
        target_count: int,
        datatype: int,
        stream: int,
        op: int = -1,
        root: int = -1,
    ) -> None:
        self._check_open()
        size = np.dtype(TYPES[datatype]).itemsize
        read = self._memory(source, count * size, stream=stream, written=False)
        writes = verb != "reduce" or self._rank == root
        written = None
        if writes:
            written = self._memory(target, target_count * size, stream=stream, written=True)
        said = (verb, datatype, op, root, count)

        self._call(stream, None, (said, read, written))

    def _message(
        self,
        pair: tuple[int, int],
        pointer: int,
        count: int,
        datatype: int,
        stream: int,
    ) -> None:
        self._check_open()
        receives = pair[1] == self._rank
        nbytes = count * np.dtype(TYPES[datatype]).itemsize
        memory = self._memory(pointer, nbytes, stream=stream, written=receives)
        self._call(stream, pair, ((count, datatype), memory, memory if receives else None))

    def _call(self, stream: int, pair: tuple[int, int] | None, made: tuple[Any, ...]) -> None:
        def put(kernel: Kernel) -> Part:
            part = Part(kernel, *made)
            self._world.put(self._rank, pair, part)
            return part

        if getattr(_COLLECTED, "depth", 0):
            _COLLECTED.calls.append((stream, put))
        else:
            _enqueue([(stream, put)])


nccl: Any = types.SimpleNamespace(
    NcclCommunicator=NcclCommunicator,
    NcclError=NcclError,
    available=True,
    get_unique_id=get_unique_id,
    get_version=lambda: 22809,
    groupEnd=group_end,
    groupStart=group_start,
)
