"""Memory of GPUs for the arrays that go between two workers of one host, by CUDA's handles.

    sender                                                    receiver
      array ─▶ a block of a slab on its GPU
      shadow, lent as any buffer ══ GPU, handle, offset ══▶ opens the slab, once ─▶ its own array
      both blocks are free again ◀══ the shadow is returned ══ when it was copied

A shadow (`wire.shadow`) is a block of the memory that both ends map. The block of the GPU lives as
long as its shadow: it is taken with it, and free when it is. So no second account is kept of the
memory that the peer has, and memory that was lent to a lost peer is never used again.

The receiver copies. Memory that it opened must not be used after the sender has freed it, and
nothing could make users of CuPy's arrays obey that. A copy on the GPU takes a hundredth of the time
of the way through host memory.

When the stream breaks, an array that was posted is copied to the host, into the room of its shadow,
and goes as it would have without GPU memory. Before anything goes by the GPU alone, one array goes
both ways as a trial.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays import DeviceMemory, Mappings, SharedPlace, octets_from_gpu
from telegrad.critical import critical
from telegrad.transport.channels.ledger import Account, Block, Bounds, Ledger
from telegrad.transport.log import get_logger
from telegrad.wire import INLINE_BYTES, SHADOW_BYTES, Mode, land, mode_of, set_mode, write_place

logger = get_logger(__name__)

CUDA_IPC: Final = "cuda-ipc"  # the capability in a hello; one entry for each GPU follows
GPU: Final = "gpu="

# Not measured: no GPU was available. Slabs have 16 MiB and more, of which a GPU has thousands;
# unlike those of the host they take room as soon as they are made.
DEVICE_BOUNDS: Final = Bounds(lent=2**30, idle=2**28, slabs=16, all_slabs=64)
# A receiver closes a slab that it has not used for so long. The slab's maker keeps it three times
# as long, so that it is not freed while somebody has it open.
OPEN_SECONDS: Final = DEVICE_BOUNDS.idle_seconds / 3

NOWHERE: Final = np.empty(0, np.uint8)


def told_of(gpus: Sequence[str]) -> tuple[str, ...]:
    """Returns the entries of a hello for the GPUs of this worker, in the order of their numbers.

    >>> told_of(["1f", "a0"])
    ('cuda-ipc', 'gpu=1f', 'gpu=a0')
    >>> told_of([])
    ()
    """
    return (CUDA_IPC, *(GPU + each for each in gpus)) if gpus else ()


def _gpus(told: Sequence[str]) -> list[str]:
    if CUDA_IPC not in told:
        return []
    return [each.removeprefix(GPU) for each in told if each.startswith(GPU)]


# Takes so many bytes that both ends map, and that live as long as a companion; None for none.
Take: TypeAlias = Callable[[int, "Hold"], memoryview | None]


@final
class Hold:
    """A block of a GPU, and the shadow that stands for it.

    Attributes:
        number: The number of the GPU.
        block: The block there; None once it is free.
        octets: The shadow's bytes; none before it was taken.
        trial: True if the bytes are in both, and the result of the trial is not known yet.

    Args:
        trial: True if the bytes are in both.
    """

    __slots__ = ("_stream", "block", "number", "octets", "trial")

    def __init__(
        self, stream: DeviceStream, number: int, block: Block[DeviceMemory] | None, *, trial: bool
    ) -> None:
        self._stream = stream
        self.number, self.block, self.trial = number, block, trial
        self.octets: np.ndarray[Any, Any] = NOWHERE

    def lies(self, octets: np.ndarray[Any, Any]) -> None:
        """Takes the bytes of the shadow."""
        self.octets = octets

    def returned(self) -> None:
        """Called when the peer has given the shadow back."""
        if self.trial:
            self._stream.tried(self, mode_of(self.octets))

    def freed(self) -> None:
        """Called when the shadow is free."""
        self._stream.free(self)


@final
class DeviceSlabs:
    """The memory of GPUs that one worker shares; any thread.

    Attributes:
        mappings: The slabs of other workers that are open here.
        land: As `wire.land`, with these mappings.

    Args:
        bounds: The bounds for each GPU.
    """

    def __init__(self, clock: Callable[[], float], bounds: Bounds = DEVICE_BOUNDS) -> None:
        self.mappings = Mappings(clock, OPEN_SECONDS)
        self.land: Callable[..., Any] = partial(land, mappings=self.mappings)
        self._clock = clock
        self._bounds = bounds
        self._lock = threading.Lock()  # guards the next two
        self._ledgers: dict[int, Ledger[DeviceMemory]] = {}
        self._retired: list[tuple[float, DeviceMemory]] = []  # with the time of retirement
        self._freed: queue.SimpleQueue[tuple[int, Block[DeviceMemory]]] = queue.SimpleQueue()
        self._unsaid: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def open(
        self, told: Sequence[str], capabilities: Sequence[str], take: Take
    ) -> DeviceStream | None:
        """Begins to share memory with the peer of a stream, of GPUs that both see.

        Args:
            told: The capabilities in this worker's hello.
            capabilities: The capabilities in the peer's hello.
            take: Takes memory that both map.
        """
        theirs = _gpus(capabilities)
        shared = {number: each for number, each in enumerate(_gpus(told)) if each in theirs}
        return DeviceStream(self, shared, take) if shared else None

    def take(
        self, number: int, account: Account[DeviceMemory], size: int
    ) -> Block[DeviceMemory] | None:
        """Returns a block of a GPU; None where none may be had.

        Raises:
            RuntimeError: Memory of this GPU cannot be shared.
        """
        with critical.section, self._lock:
            ledger = self._ledgers.get(number)
            if ledger is None:
                ledger = self._ledgers[number] = Ledger(partial(DeviceMemory, number), self._bounds)
            self._drain()
            try:
                return ledger.take(account, size)
            except MemoryError:
                return None

    def free(self, number: int, block: Block[DeviceMemory]) -> None:
        """Records that nothing refers to a block any more; from any thread."""
        self._freed.put((number, block))

    def close(self, number: int, account: Account[DeviceMemory]) -> None:
        """Retires the memory of one stream: nobody uses it again, and it is freed after a while."""
        with critical.section, self._lock:
            self._drain()
            ledger, now = self._ledgers.get(number), self._clock()
            if ledger is not None:
                self._retired += [(now, slab.memory) for slab in ledger.close(account)]

    def tick(self) -> None:
        """Frees memory that was unused for a while, in a thread: CUDA may wait for the GPU."""
        now = self._clock()
        then = now - self._bounds.idle_seconds
        with critical.section, self._lock:
            self._drain()
            gone = [memory for since, memory in self._retired if since <= then]
            self._retired = [each for each in self._retired if each[0] > then]
            for ledger in self._ledgers.values():
                gone += [slab.memory for slab in ledger.trim(now)]
        if gone or self.mappings.idle or not self._unsaid.empty():
            letting_go = threading.Thread(target=self._let_go, args=(gone,), name="telegrad-gpu")
            letting_go.daemon = True
            letting_go.start()

    def end(self) -> None:
        """Frees all memory, once all streams have ended; may wait for a GPU."""
        with critical.section, self._lock:
            self._drain()
            gone, self._retired = self._retired, []
        gone.clear()
        self.mappings.close_idle(0.0)
        self._speak()

    def say(self, level: int, words: str) -> None:
        """Logs words soon: a thread that holds a lock calls no log handlers, which may block."""
        self._unsaid.put((level, words))

    def _speak(self) -> None:
        while not self._unsaid.empty():
            logger.log(*self._unsaid.get())

    def _let_go(self, gone: list[DeviceMemory]) -> None:
        gone.clear()  # this frees it
        self.mappings.close_idle()
        self._speak()

    def _drain(self) -> None:
        while not self._freed.empty():
            number, block = self._freed.get()
            self._ledgers[number].released(block, self._clock())


@final
class DeviceStream:
    """The memory of GPUs that this end of one stream shares with the other; any thread.

    Args:
        slabs: The worker's memory of GPUs.
        gpus: The identities of the GPUs that both see, by their numbers here.
        take: Takes memory that both map.
    """

    def __init__(self, slabs: DeviceSlabs, gpus: dict[int, str], take: Take) -> None:
        self._slabs = slabs
        self._gpus = gpus
        self._take = take
        self._accounts: dict[int, Account[DeviceMemory]] = {n: Account() for n in gpus}
        self._lock = threading.Lock()  # guards the next three
        self._open = True
        self._holds: dict[int, Hold] = {}  # by the addresses of their shadows
        # True: it works. False: it does not, or a trial is under way. No entry: not tried.
        self._works: dict[int, bool] = {}

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array to its GPU's shared memory; returns its shadow, to be posted to the peer.

        The copy is made in the current CUDA stream, which is waited for. Returns None if the array
        is small, or there is no memory.
        """
        number = int(array.device.id)
        if array.nbytes <= INLINE_BYTES or number not in self._gpus:
            return None
        with critical.section, self._lock:
            works = self._works.get(number)
            if works is False or not self._open:
                return None
            if works is None:
                self._works[number] = False  # until the result comes, others go as before
        trial = works is None
        try:
            block = self._slabs.take(number, self._accounts[number], array.nbytes)
        except RuntimeError as error:
            logger.info("GPU %d cannot share memory with workers of this host: %s", number, error)
            return None
        hold = Hold(self, number, block, trial=trial)
        try:
            return None if block is None else self._filled(hold, block, array)
        finally:
            if hold.octets is NOWHERE:
                self.free(hold)

    def _filled(self, hold: Hold, block: Block[DeviceMemory], array: Any) -> memoryview | None:
        shadow = self._take(array.nbytes + SHADOW_BYTES, hold)
        if shadow is None:
            return None
        memory = block.slab.memory
        memory.fill(block.offset, array)
        if hold.trial:
            octets_from_gpu(hold.octets[:-SHADOW_BYTES], array)
        place = SharedPlace(self._gpus[hold.number], memory.handle, memory.size, block.offset)
        write_place(hold.octets, Mode.BOTH if hold.trial else Mode.THERE, place)
        with critical.section, self._lock:
            if self._open:
                self._holds[_address(hold.octets)] = hold
            else:  # the stream ended meanwhile
                self._take_back(hold)
        return shadow

    def tried(self, hold: Hold, mode: Mode) -> None:
        """Takes the result of a trial; any thread."""
        if mode not in (Mode.OPENED, Mode.REFUSED):
            return  # the peer did not look, as the call was dropped, for instance
        hold.trial = False
        with critical.section, self._lock:
            self._works[hold.number] = mode is Mode.OPENED
        if mode is Mode.REFUSED:
            words = "arrays go by host memory (its log says why)"
            words = f"a worker of this host cannot open memory of GPU {hold.number}: {words}"
            self._slabs.say(logging.INFO, words)

    def settle(self, buffer: memoryview) -> None:
        """Takes a buffer that is not lent: a shadow's bytes then go like any others."""
        with critical.section, self._lock:
            hold = self._holds.get(_address(np.frombuffer(buffer, np.uint8)))
            if hold is not None:
                self._take_back(hold)

    def free(self, hold: Hold) -> None:
        """Takes a shadow that is free; in any thread."""
        with critical.section, self._lock:
            self._holds.pop(_address(hold.octets), None)
            block, hold.block = hold.block, None
            if hold.trial:
                self._works.pop(hold.number, None)  # the next one is a trial
                hold.trial = False
        if block is not None:
            self._slabs.free(hold.number, block)

    def close(self) -> None:
        """Copies arrays that may have to go another way to the host; lets go of all memory."""
        # The lock keeps memory of the host from being taken for something else.
        with critical.section, self._lock:
            self._open = False
            for hold in self._holds.values():
                self._take_back(hold)
                if hold.block is not None:
                    self._slabs.free(hold.number, hold.block)
                    hold.block = None
            self._holds.clear()
        for number, account in self._accounts.items():
            self._slabs.close(number, account)

    def _take_back(self, hold: Hold) -> None:
        """Copies the bytes of a block into its shadow."""
        there, block = mode_of(hold.octets) is Mode.THERE, hold.block
        if block is None:
            return
        try:
            if there:
                block.slab.memory.read(block.offset, hold.octets[:-SHADOW_BYTES])
        except Exception as error:  # any error of CUDA
            words = f"an array on GPU {hold.number} is lost on its way: {error}"
            self._slabs.say(logging.WARNING, words)
            set_mode(hold.octets, Mode.GONE)
        else:
            set_mode(hold.octets, Mode.HERE)


def _address(octets: np.ndarray[Any, Any]) -> int:
    there: int = octets.__array_interface__["data"][0]
    return there
