"""Code of others that runs inside telegrad's: at every opcode, or line, of the paths of a call.

A trace function is called there by the interpreter, in the thread that is interrupted, as finalisers
and handlers are. It forces a collection of garbage that has a finaliser, a signal, or a log record;
each of them calls. The program is one worker; `interrupt_served` is the other.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import telegrad as tg
from telegrad import collectives, dist_autograd, rpc
from telegrad.errors import BlockingCallError, CallCancelledError
from telegrad.testing import leaks
from telegrad.transport import get_logger, shared_loop_thread

OURS = str(Path(tg.__file__).parent)
ROOMS = "collectives", "dist_autograd", "rpc", "transport", "wire", "critical.py"
FLOORS = tuple(f"{OURS}/{each}" for each in ROOMS)
SECONDS = (
    600.0  # a call may wait for thousands of interruptions of the loop: 60 were too few at load 25
)

served: Counter[str] = Counter()


# -- at the callee -----------------------------------------------------------------------------------


def note(what: str) -> str:
    """Is called by code that interrupts."""
    served[what] += 1
    return what


def count(what: str) -> int:
    """Returns how often that was."""
    return served[what]


async def never() -> None:
    """Is cancelled."""
    await rpc.Future[None]()


class Kept:
    """The value of an RRef."""

    def get(self) -> int:
        return 7


def numbers(n: int) -> Iterator[int]:
    """Yields the first n numbers."""
    yield from range(n)


def square(x: tg.Tensor) -> tg.Tensor:
    return x * x


def add_up() -> float:
    """Takes part in a reduction."""
    ones = np.ones(1000, np.float32)
    collectives.all_reduce(ones)
    return float(ones[0])


# -- what the code of others does ------------------------------------------------------------------


class Interrupter:
    """Makes calls from where no caller expects it, and keeps what they must give in the end."""

    def __init__(self) -> None:
        self.notes: list[rpc.Future[str]] = []
        self.kept: list[rpc.RRef[Kept]] = []
        self.cancelled: list[rpc.Future[Any]] = []
        self.waited: list[str] = []
        self.runs = 0
        self.busy: list[None] = []  # one for each thread that acts, or may begin to

    def act(self) -> None:
        """Does one of its acts; the next call does the next one."""
        self.runs += 1
        acts = self.call, self.release, self.cancel, self.create, self.complete, self.block
        with self.is_busy():
            acts[self.runs % 6]()

    @contextmanager
    def is_busy(self) -> Iterator[None]:
        self.busy.append(None)
        try:
            yield
        finally:
            self.busy.pop()

    def call(self) -> None:
        self.notes.append(rpc.rpc_async(1, note, ("call",), timeout=SECONDS))

    def release(self) -> None:
        if self.kept:
            self.kept.pop().release()

    def cancel(self) -> None:
        future = rpc.rpc_async(1, never, timeout=SECONDS)
        assert future.cancel()
        self.cancelled.append(future)

    def create(self) -> None:
        self.kept.append(rpc.remote(1, Kept, timeout=SECONDS))

    def complete(self) -> None:
        plain = rpc.Future[int]()
        doubled = plain.then(lambda done: 2 * done.value())
        plain.set_result(3)
        self.notes.append(doubled.then(lambda done: str(done.value())))

    def block(self) -> None:
        with contextlib.suppress(BlockingCallError):
            self.waited.append(rpc.rpc_sync(1, note, ("sync",), timeout=SECONDS))

    def check(self) -> None:
        """Checks that all that was asked for has come."""
        gc.collect()
        leaks.wait_until_gone("acts of other threads", lambda: ["one more"] * len(self.busy))
        assert rpc.rpc_sync(1, count, ("sync",)) == len(self.waited) > 0
        for future in self.notes:
            assert future.wait(SECONDS) in ("call", "6")
        calls = sum(future.value() == "call" for future in self.notes)
        assert rpc.rpc_sync(1, count, ("call",)) == calls, (calls, "calls were made")
        for future in self.cancelled:
            assert isinstance(future.exception(), CallCancelledError)
        for rref in self.kept:
            assert rref.rpc_sync(SECONDS).get() == 7
            rref.release()


class Garbage:
    """A circle with a finaliser."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.me = self
        self.act = act

    def __del__(self) -> None:
        self.act()


class Ship(logging.Handler):
    """A handler that calls another worker with each record."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def emit(self, record: logging.LogRecord) -> None:
        self.act()


def forced(kind: str, interrupter: Interrupter) -> Callable[[], None]:
    """Returns a function that has the interpreter run code of others now."""
    act = interrupter.act
    if kind == "collection":

        def collect() -> None:
            Garbage(act)
            gc.collect(0)

        return collect
    if kind == "signal":
        signal.signal(signal.SIGUSR1, lambda *_: act())
        return lambda: signal.raise_signal(signal.SIGUSR1)
    log = get_logger(f"{tg.__name__}.{kind}")  # whose handlers never run on telegrad's loop
    log.setLevel(logging.INFO)
    log.addHandler(Ship(act))
    return lambda: log.info("a record")


# -- where it does so --------------------------------------------------------------------------------


class Tracer:
    """Interrupts threads at every opcode, or line, of telegrad's that they run in a block."""

    def __init__(self, interrupter: Interrupter, kind: str, *, opcodes: bool) -> None:
        self._interrupter = interrupter
        self._interrupt = forced(kind, interrupter)
        self._event = "opcode" if opcodes else "line"
        self._opcodes = opcodes
        self._places: Counter[tuple[object, int]] = Counter()
        self._on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Interrupts this thread in the block, and telegrad's other threads, once at each place."""
        self._on = True
        sys.settrace(self.enter)
        try:
            yield
        finally:
            sys.settrace(None)
            self._on = False

    @property
    def places(self) -> int:
        return len(self._places)

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if not (self._on and event == "call" and frame.f_code.co_filename.startswith(FLOORS)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self._opcodes, not self._opcodes
        return self._at

    def _at(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == self._event and self._on:
            place = frame.f_code, frame.f_lasti if self._opcodes else frame.f_lineno
            self._places[place] += 1
            if self._places[place] == 1:
                with self._interrupter.is_busy():
                    if self._on:
                        self._interrupt()
        return self._at


# -- the program -----------------------------------------------------------------------------------


def run_verbs() -> None:
    """Runs each verb once."""
    assert rpc.rpc_sync(1, note, ("mine",)) == "mine"
    assert rpc.rpc_async(1, note, ("mine",)).wait() == "mine"
    rref = rpc.remote(1, Kept)
    assert rref.rpc_sync().get() == 7
    assert rref.rpc_async().get().wait() == 7
    made = rref.remote().get()
    assert made.to_here() == 7
    made.release()
    rref.release()
    running = rpc.rpc_async(1, never)
    running.cancel()
    assert rpc.gather([(1, note, ("mine",)), (1, note, ("mine",))]).wait() == ["mine", "mine"]
    assert rpc.wait_all([rpc.rpc_async(1, note, ("mine",))]) == ["mine"]
    future = rpc.Future[int]()
    then = future.then(lambda done: done.value() + 1)
    future.set_result(1)
    assert then.wait() == 2
    assert list(rpc.stream(1, numbers, (3,))) == [0, 1, 2]
    futures = [rpc.rpc_async(1, note, ("mine",)) for _ in range(3)]
    assert [each.value() for each in rpc.as_completed(futures)] == ["mine"] * 3
    kept = rpc.RRef(7)
    rpc.publish("kept", kept)
    assert rpc.lookup(0, "kept").to_here() == 7
    rpc.unpublish("kept")
    with dist_autograd.context() as context:
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(1, square, (x,)).sum()])
        gradients = dist_autograd.get_gradients(context)
        assert np.array_equal(gradients[x], [2.0, 4.0])
    for async_op in False, True:
        there = rpc.rpc_async(1, add_up)
        ones = np.ones(1000, np.float32)
        work = collectives.all_reduce(ones, async_op=async_op)
        if work is not None:
            work.wait()
        assert ones[0] == there.wait() == 2.0


def main(kind: str, grain: str, direct: str) -> None:
    """Is one worker of two: kind of interruption, "opcode" or "line", and `RpcOptions.direct`."""
    interrupter = Interrupter()
    tracer = Tracer(interrupter, kind, opcodes=grain == "opcode")
    if kind != "signal":  # those come to the main thread alone
        threading.settrace(tracer.enter)
    way: Any = {"True": True, "False": False}.get(direct, direct)
    options = rpc.RpcOptions(direct=way, lost_after=SECONDS)  # a traced loop is slow
    agent = rpc.init_rpc(options=options)
    collectives.init_process_group()
    if agent.rank == 0:
        run_verbs()
        with tracer.on():
            run_verbs()
        threading.settrace(None)
        told = threading.Event()  # once the handler has had all records
        shared_loop_thread().log(told.set)
        assert told.wait(SECONDS)
        interrupter.check()
        assert rpc.rpc_sync(1, count, ("mine",)) == 16
        assert interrupter.runs > 500
        sys.stdout.write(f"{tracer.places} places\n")
    rpc.shutdown()


if __name__ == "__main__":
    from tests.rpc.promises import interrupt_code  # by its name: the calls name its functions so

    interrupt_code.main(*sys.argv[1:])
