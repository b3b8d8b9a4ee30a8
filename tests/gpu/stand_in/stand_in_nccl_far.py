"""The stand-in for NCCL between processes: the one that made the id runs all calls.

    other rank                                  the process that made the id
      a call is enqueued            ── put ──▶    stands for the call there
      its stream comes to it        ── bytes ─▶   the call may run (`stand_in_nccl`)
      writes the result, is done    ◀─ bytes ──   all ranks have come

A process that dies leaves its calls undone, so the kernels of the others never end.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from tests.gpu.stand_in import stand_in_nccl
from tests.gpu.stand_in.stand_in_nccl import (
    GARBAGE,
    LOCK,
    PARTS,
    WORLDS,
    NcclError,
    Part,
    World,
    advance,
)

__all__ = ["reach_other_processes"]


def reach_other_processes() -> None:
    """Lets communicators of this process have ranks in others, from now on."""
    stand_in_nccl.nccl.get_unique_id = make_id
    stand_in_nccl.find = FarWorld


def make_id() -> bytes:
    address = f"\0telegrad-stand-in-nccl-{os.urandom(8).hex()}"
    made = address.encode().ljust(stand_in_nccl.UNIQUE_ID_BYTES, b"\0")
    with LOCK:
        world = WORLDS[made] = World()
    listener = Listener(address, "AF_UNIX")

    def accept() -> None:
        while True:
            _in_thread(partial(serve, Wire(listener.accept()), world))

    _in_thread(accept)
    return made


def _in_thread(run: Any) -> None:
    threading.Thread(target=run, daemon=True, name="stand-in-nccl").start()


class Wire:
    """A connection that never makes the sender wait."""

    def __init__(self, connection: Connection) -> None:
        self.receive = connection.recv
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.send = self._outbox.put
        self._connection = connection
        _in_thread(self._send_all)

    def _send_all(self) -> None:
        with suppress(OSError):
            while True:
                self._connection.send(self._outbox.get())


class FarKernel:
    """The kernel of another process, at the one that runs the calls."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.ready = False
        self._wire, self._number = wire, number
        self.part: Any = None

    def finish(self) -> None:
        target = self.part.target
        self._wire.send((self._number, b"" if target is None else target.tobytes()))


def serve(wire: Wire, world: World) -> None:
    """Does what a rank of another process asks for."""
    kernels: dict[int, FarKernel] = {}
    with suppress(EOFError, OSError):
        size, rank, device = wire.receive()
        try:
            world.join(size, rank, device)
        except NcclError as error:
            wire.send(str(error))
            return
        wire.send("")
        while True:
            verb, number, *args = wire.receive()
            with LOCK:
                if verb == "put":
                    pair, said, nbytes = args
                    target = None if nbytes is None else np.empty(nbytes, np.uint8)
                    kernel: Any = FarKernel(wire, number)
                    kernels[number] = kernel
                    kernel.part = Part(kernel, said, np.empty(0, np.uint8), target)
                    PARTS[kernel] = [kernel.part]
                    world.put(rank, pair, kernel.part)
                elif verb == "ready":
                    kernels[number].part.source = np.frombuffer(args[0], np.uint8)
                    kernels[number].ready = True
                    advance()
                else:
                    getattr(world, verb)(rank)


class FarWorld:
    """The ranks of one communicator whose id another process has made; as `World`."""

    failure = ""

    def __init__(self, unique_id: bytes) -> None:
        try:
            self._wire = Wire(Client(unique_id.rstrip(b"\0").decode(), "AF_UNIX"))
        except OSError as error:
            raise NcclError(f"NCCL_ERROR_SYSTEM_ERROR: {error}") from error
        self._numbers = itertools.count()
        self._parts: dict[int, Part] = {}

    def join(self, size: int, rank: int, device: int) -> None:
        self._wire.send((size, rank, device))
        try:
            trouble = self._wire.receive()
        except (EOFError, OSError):
            trouble = "NCCL_ERROR_REMOTE_ERROR: a rank is missing"
        if trouble:
            raise NcclError(trouble)
        _in_thread(self._take_all)

    def put(self, rank: int, pair: tuple[int, int] | None, part: Part) -> None:
        number, target = next(self._numbers), part.target
        self._parts[number] = part
        self._wire.send(("put", number, pair, part.said, None if target is None else target.size))
        _in_thread(partial(self._come, number, part))

    def drop(self, rank: int) -> None:
        self._wire.send(("drop", -1))
        for part in self._parts.values():
            self._end(part, None)
        self._parts.clear()
        advance()

    def leave(self, rank: int) -> None:
        self._wire.send(("leave", -1))

    def _come(self, number: int, part: Part) -> None:
        part.kernel.wait_before()
        self._wire.send(("ready", number, part.source.tobytes()))

    def _take_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, octets = self._wire.receive()
                with LOCK:
                    part = self._parts.pop(number, None)
                    if part is not None:
                        self._end(part, np.frombuffer(octets, np.uint8))
                        advance()

    def _end(self, part: Part, found: Any) -> None:
        if part.target is not None:
            part.target[...] = GARBAGE if found is None else found
        part.done = True
