"""Random operations with known results, which each worker of a chaos run does on the others.

An operation ends with the right value, or with an error that a fault explains, and within a bound.
All else is a finding: another value, another error, a hang, a call that ran twice.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import random
import socket
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, TypeAlias, cast

import numpy as np

from telegrad import collectives as dist
from telegrad import dist_autograd, nn, parallel, rpc
from telegrad.arrays import shared_empty
from telegrad.autograd import RowSparse, Tensor, tensor
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    EncodeError,
    TelegradError,
    ValueNotFoundError,
    WorkerLostError,
)
from telegrad.testing import faulty_network
from telegrad.testing.leaks import LeakError, open_descriptors, wait_until_gone
from telegrad.types import Array
from tests.collectives.api.test_objects import exchange as exchange_objects
from tests.collectives.promises.test_programs import VERBS, run_step

__all__ = [
    "BOUND",
    "CALL_SECONDS",
    "Fault",
    "begun",
    "connections",
    "count_streams",
    "leave",
    "prepare",
    "report",
    "run",
]

CALL_SECONDS = 4.0
# For one operation: a few calls, a worker that is stopped meanwhile, and a machine that stands still.
BOUND = 20.0
THREADS = 3
ROUNDS = 25  # of collective operations
SHARED_ITEMS = 150_000  # of float64, more than 1 MiB

Fault: TypeAlias = tuple[float, str]  # after so many seconds: "break", "cut" or "heal"
Draw: TypeAlias = random.Random

_lock = threading.Lock()
_ran: Counter[str] = Counter()  # numbered calls that ran here
_confirmed: list[tuple[str, str]] = []  # workers, and numbered calls that have returned from there
_outcomes: Counter[str] = Counter()
_findings: list[str] = []
_me: list[str] = []  # this worker
_others: list[str] = []  # the other workers, the lost ones included
_begun = threading.Event()
_losses: list[str] = []  # workers that were lost, before any of them left
_streams: Counter[str] = Counter()  # that came up, by scheme


class WrongValueError(AssertionError):
    """An operation returned something else than it should."""


def expect(found: object, right: object) -> None:
    """Compares values, arrays among them.

    Raises:
        WrongValueError: They differ.
    """
    if not np.array_equal(cast("Array", found), cast("Array", right)):
        raise WrongValueError(f"found {found!r}, and {right!r} is right")


# -- what workers call on each other -----------------------------------------------------------


def ran(number: str, value: int) -> int:
    """Notes that a numbered call ran here."""
    with _lock:
        _ran[number] += 1
    return value * value + 1


async def ran_on_loop(number: str, value: int) -> int:
    await asyncio.sleep(0)
    return ran(number, value)


def relay(to: str, number: str, value: int) -> int:
    return rpc.rpc_sync(to, ran, (number, value))


def nap(seconds: float) -> float:
    threading.Event().wait(seconds)
    return seconds


def echo(array: Array) -> Array:
    return array


def counted(seed: int, size: int) -> Array:
    return np.random.default_rng(seed).integers(0, 1000, size).astype(np.float64)


def stream_arrays(count: int, size: int) -> Iterator[Array]:
    for i in range(count):
        yield counted(i, size)


class Cell:
    """A sum to which others add."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()

    def add(self, number: str) -> int:
        ran(number, 0)
        with self._lock:
            self.total += 1
            return self.total

    def get(self) -> int:
        return self.total


def total_of(cell: rpc.RRef[Cell]) -> int:
    return cell.rpc_sync().get()


def value_of(rref: rpc.RRef[Array]) -> Array:
    return rref.to_here(timeout=CALL_SECONDS)


class Layer:
    """A weight on some worker."""

    def __init__(self, seed: int) -> None:
        self.weight = tensor(weights(seed), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(x @ self.weight))

    def gradient(self, context_id: int) -> Array:
        return dist_autograd.get_gradients(context_id)[self.weight].data


def weights(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(4, 4))


# -- operations --------------------------------------------------------------------------------


def me() -> str:
    return _me[0]


def other(draw: Draw) -> str:
    return draw.choice(_others)


def numbered(draw: Draw) -> tuple[str, int]:
    """Returns a number that no other call has, and a value."""
    return f"{me()} {draw.getrandbits(64):x}", draw.randrange(1000)


def confirm(to: str, number: str, found: int, value: int) -> None:
    expect(found, value * value + 1)
    with _lock:
        _confirmed.append((to, number))


def call(draw: Draw) -> None:
    to, (number, value) = other(draw), numbered(draw)
    func: Callable[[str, int], Any] = draw.choice([ran, ran_on_loop])
    confirm(to, number, rpc.rpc_sync(to, func, (number, value)), value)


def burst(draw: Draw) -> None:
    """Many calls at once, awaited by a thread or by a loop of its own."""
    calls = [(other(draw), *numbered(draw)) for _ in range(draw.randrange(1, 60))]
    futures = [rpc.rpc_async(to, ran, (number, value)) for to, number, value in calls]

    async def together() -> list[int]:
        return [await each for each in futures]

    found = rpc.wait_all(futures) if draw.random() < 0.5 else asyncio.run(together())
    for (to, number, value), each in zip(calls, found, strict=True):
        confirm(to, number, each, value)


def nested_call(draw: Draw) -> None:
    """A call through another worker, perhaps back to this one."""
    via, to, (number, value) = other(draw), draw.choice([me(), other(draw)]), numbered(draw)
    confirm(to, number, rpc.rpc_sync(via, relay, (to, number, value)), value)


def big_array(draw: Draw) -> None:
    array = counted(draw.randrange(100), draw.choice([10, 20_000, 400_000]))
    expect(rpc.rpc_sync(other(draw), echo, (array,)), array)


def give_up(draw: Draw) -> None:
    """Calls that are cancelled, or have too little time."""
    future = rpc.rpc_async(other(draw), nap, (0.2,))
    future.cancel()
    with suppress(CallCancelledError):
        expect(future.wait(), 0.2)
    with suppress(CallTimeoutError):
        expect(rpc.rpc_sync(other(draw), nap, (0.2,), timeout=0.02), 0.2)


def references(draw: Draw) -> None:
    """A value and an object on one worker, used from here and from a third."""
    owner, third = other(draw), other(draw)
    seed, size = draw.randrange(100), draw.choice([10, 50_000])
    value = rpc.remote(owner, counted, (seed, size))
    cell = rpc.remote(owner, Cell, (100,))
    count = draw.randrange(1, 20)
    totals = [cell.rpc_async().add(numbered(draw)[0]) for _ in range(count)]
    expect(rpc.rpc_sync(third, value_of, (value,)), counted(seed, size))
    expect(value.to_here(timeout=CALL_SECONDS), counted(seed, size))
    expect(sorted(rpc.wait_all(totals)), [101 + i for i in range(count)])
    expect(rpc.rpc_sync(third, total_of, (cell,)), 100 + count)


def stream(draw: Draw) -> None:
    """A stream, read to its end or left in the middle."""
    count, size = draw.randrange(40), draw.choice([5, 20_000])
    most = draw.choice([count, count // 2])
    with rpc.stream(other(draw), stream_arrays, (count, size)) as items:
        found = [item for item, _ in zip(items, range(most), strict=False)]
        for i, item in enumerate(found):
            expect(item, counted(i, size))
        expect(len(found), most)


def gradients(draw: Draw) -> None:
    """A pass through two layers on other workers; without gradients if it fails."""
    seeds = draw.randrange(100), draw.randrange(100)
    x = tensor(weights(draw.randrange(100)), requires_grad=True)
    layers = [rpc.remote(other(draw), Layer, (seed,)) for seed in seeds]
    with dist_autograd.context() as context_id:
        y = x
        for layer in layers:
            y = layer.rpc_sync().forward(y)
        try:
            dist_autograd.backward(context_id, [(y * y).sum()], timeout=CALL_SECONDS)
        except TelegradError:
            expect(len(dist_autograd.get_gradients(context_id)), 0)
            raise
        found = [dist_autograd.get_gradients(context_id)[x].data]
        found += [layer.rpc_sync().gradient(context_id) for layer in layers]
    first, second = (weights(seed) for seed in seeds)
    hidden = np.tanh(x.data @ first)
    out = np.tanh(hidden @ second)
    at_out = 2 * out * (1 - out**2)
    at_hidden = at_out @ second.T * (1 - hidden**2)
    right = [at_hidden @ first.T, x.data.T @ at_hidden, hidden.T @ at_out]
    for each, gradient in zip(found, right, strict=True):
        expect(np.allclose(each, gradient), True)


class Garbage:
    """A circle, whose finaliser calls another worker wherever the collector runs."""

    def __init__(self, to: str, number: str, value: int) -> None:
        self.me = self
        self.call = to, ran, (number, value)
        self.called: list[rpc.Future[int]] = []
        self.served: list[bool] = []  # holds whether the collector ran it in a call that is served
        self.over = threading.Event()
        self.cell = rpc.remote(to, Cell, (1,))

    def __del__(self) -> None:
        try:
            self.served.append(rpc.current_call() is not None)
            self.called.append(rpc.rpc_async(*self.call))
            self.cell.release()
        except TelegradError:  # the worker has left, or its callee is lost
            pass
        finally:
            self.over.set()


def finalisers(draw: Draw) -> None:
    """Garbage that calls while this thread, or another one of telegrad's, makes its own calls."""
    to, (number, value) = other(draw), numbered(draw)
    garbage = Garbage(to, number, value)
    called, served, over = garbage.called, garbage.served, garbage.over
    del garbage
    burst(draw)
    gc.collect()
    if not over.wait(BOUND):
        raise WrongValueError("a finaliser did not end")
    for future in called:
        try:
            found = future.wait()
        except CallCancelledError:
            if not all(served):  # else it is a call of that call, and ends with it
                raise
        else:
            confirm(to, number, found, value)


OPERATIONS: list[Callable[[Draw], None]] = [
    call, call, burst, nested_call, big_array, give_up, references, stream, gradients, finalisers
]  # fmt: skip


# -- collective operations, of numbers that floats add exactly ------------------------------------


@dataclass(frozen=True)
class Drawn:
    """The values that all ranks drew for one operation.

    Attributes:
        r: This rank.
        n: The number of ranks.
        root: The rank that an operation with a root has for it.
        base: Every array is a multiple of this one.
    """

    r: int
    n: int
    root: int
    base: Array

    def own(self, rank: int) -> Array:
        """Returns the array of a rank."""
        return self.base * (rank + 1)

    def total(self, times: int = 1) -> Array:
        """Returns the sum of the arrays of all ranks, each taken so many times."""
        return self.base * (times * self.n * (self.n + 1) // 2)

    def part(self, src: int, dst: int) -> Array:
        """Returns the array that one rank has for another, no two of which are the same."""
        return self.base * (src * self.n + dst + 1)


def exchange(verb: str, drawn: Drawn) -> None:
    """Runs an operation of arrays and compares its result."""
    lengths = [-(-drawn.base.size // 2)] * drawn.n**2
    seed = int(drawn.base[0])
    run_step((verb, "SUM", "float64", drawn.root, "contiguous", False, lengths, seed))


def all_reduce_shared(drawn: Drawn) -> None:
    """Adds arrays of more than 1 MiB that the ranks of one host need not copy."""
    array = shared_empty((SHARED_ITEMS,))
    array[...] = np.resize(drawn.own(drawn.r), SHARED_ITEMS)
    dist.all_reduce(array)
    expect(array, np.resize(drawn.total(), SHARED_ITEMS))


def pairs_one_by_one(drawn: Drawn) -> None:
    """Each rank sends to each other one, one message at a time."""
    for src, dst in permutations(range(drawn.n), 2):
        if drawn.r == src:
            dist.send(drawn.part(src, dst), dst)
        elif drawn.r == dst:
            array = np.empty_like(drawn.base)
            dist.recv(array, src)
            expect(array, drawn.part(src, dst))


def pairs_at_once(drawn: Drawn) -> None:
    """Each rank sends to each other one, in the order of a ring, and all messages are on their way."""
    r, n = drawn.r, drawn.n
    works: list[dist.Work[Any]] = []
    received = {(r - step) % n: np.empty_like(drawn.base) for step in range(1, n)}
    for step in range(1, n):
        dst, src = (r + step) % n, (r - step) % n
        works.append(dist.isend(drawn.part(r, dst), dst))
        works.append(dist.irecv(received[src], src))
    for work in works:
        work.wait()
    for src, array in received.items():
        expect(array, drawn.part(src, r))


def pairs_in_a_batch(drawn: Drawn) -> None:
    """Each rank sends to each other one, all in one batch; receives come first."""
    r, others = drawn.r, [q for q in range(drawn.n) if q != drawn.r]
    received = {src: np.empty_like(drawn.base) for src in others}
    batch = [dist.P2POp(dist.irecv, array, src) for src, array in received.items()]
    batch += [dist.P2POp(dist.isend, drawn.part(r, dst), dst) for dst in others]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    for src, array in received.items():
        expect(array, drawn.part(src, r))


def objects(drawn: Drawn) -> None:
    """Every operation of objects."""
    exchange_objects([[q, "word", drawn.own(q).tobytes()] for q in range(drawn.n)], drawn.root)


def objects_that_cannot_travel(drawn: Drawn) -> None:
    """All ranks hear of the one whose object it is, and go on."""
    try:
        dist.all_gather_object(_NotRegistered() if drawn.r == drawn.root else 1)
    except EncodeError as error:
        expect(f"rank {drawn.root} " in str(error), True)
    else:
        raise WrongValueError("an object of no registered type has travelled")


class _NotRegistered:
    """Cannot travel."""


def groups(drawn: Drawn) -> None:
    """The root is alone, all others are a group, and each reduces."""
    others = [q for q in range(drawn.n) if q != drawn.root]
    reduce_in(dist.split_group(None, [[drawn.root], others] if others else [[drawn.root]]), drawn)
    reduce_in(dist.new_subgroups_by_enumeration([[q] for q in range(drawn.n)])[0], drawn)
    reduce_in(dist.new_subgroups(drawn.n)[0], drawn)
    reduce_in(dist.new_group([*others, drawn.root]), drawn)


def smaller_group(drawn: Drawn) -> None:
    """All but the root go on without it for once, and without whoever is lost."""
    if drawn.r != drawn.root:
        reduce_in(dist.shrink_group(ranks_to_exclude=[drawn.root]), drawn)


def reduce_in(group: dist.ProcessGroup | None, drawn: Drawn) -> None:
    """Reduces in a group that was made for that."""
    assert group is not None
    array = drawn.own(drawn.r)
    dist.all_reduce(array, group=group)
    expect(array, sum(drawn.own(q) for q in group.ranks))
    dist.destroy_process_group(group)


def replica(group: dist.ProcessGroup | None = None) -> parallel.DistributedDataParallel:
    network = nn.Linear(3, 1, bias=False, dtype=np.float64)
    return parallel.DistributedDataParallel(network, process_group=group)


def expect_gradient(model: parallel.DistributedDataParallel, drawn: Drawn, mean: Array) -> None:
    """Runs a backward of this rank's own input; compares the mean over the ranks."""
    inputs = drawn.n * drawn.own(drawn.r)[:3].reshape(1, 3)  # so that the mean is exact
    model.zero_grad()
    model(tensor(inputs)).sum().backward()
    (weight,) = model.parameters()
    expect(cast("Tensor", weight.grad).data, mean[:3].reshape(1, 3))


def data_parallel(drawn: Drawn) -> None:
    """The gradient is the mean over the ranks of those that each has from its own input."""
    expect_gradient(replica(), drawn, drawn.total())


def joined(drawn: Drawn) -> None:
    """The root has fewer inputs than the others, and shadows their last ones."""
    model = replica()
    with model.join():
        expect_gradient(model, drawn, drawn.total())
        if drawn.r != drawn.root:
            for _ in range(2):
                expect_gradient(model, drawn, drawn.total() - drawn.own(drawn.root))


def hooked(drawn: Drawn) -> None:
    """A hook averages; then that of the root raises, in a group of its own, and all hear of it."""
    model = replica()
    model.register_comm_hook(None, parallel.allreduce_hook)
    expect_gradient(model, drawn, drawn.total())
    group = dist.new_group(range(drawn.n))
    failing = replica(group)
    failing.register_comm_hook(drawn.root, fail_at)
    try:
        expect_gradient(failing, drawn, drawn.total())
    except ArithmeticError as error:
        expect("no average today" in str(error), True)
    else:
        raise WrongValueError("a hook has raised on one rank, and backward has not on this one")
    dist.destroy_process_group(group)


def fail_at(root: int, bucket: parallel.GradientBucket) -> rpc.Future[Array]:
    if dist.get_rank() == root:
        raise ArithmeticError("no average today")
    return parallel.allreduce_hook(None, bucket)


def rows(drawn: Drawn) -> None:
    """Each rank has a row of its own and one that all have."""
    own, n = drawn.own(drawn.r), drawn.n
    found = parallel.all_reduce_rows(
        RowSparse(np.array([drawn.r, n]), np.stack([own, own]), (n + 1, own.size))
    )
    expect(found.rows, np.arange(n + 1))
    expect(found.values, np.stack([*map(drawn.own, range(n)), drawn.total()]))


def coalesced(drawn: Drawn) -> None:
    """Three operations in one; their arrays are right after the block."""
    added, taken, doubled = drawn.own(drawn.r), drawn.own(drawn.r), 2 * drawn.own(drawn.r)
    with dist.coalesced():
        dist.all_reduce(added)
        dist.broadcast(taken, drawn.root)
        dist.all_reduce(doubled)
    expect(added, drawn.total())
    expect(taken, drawn.own(drawn.root))
    expect(doubled, drawn.total(2))


def barrier(_: Drawn) -> None:
    dist.barrier()
    dist.monitored_barrier()


COLLECTIVES: list[Callable[[Drawn], None]] = [
    *(partial(exchange, verb) for verb in VERBS), all_reduce_shared,
    pairs_one_by_one, pairs_at_once, pairs_in_a_batch, objects, objects_that_cannot_travel,
    groups, smaller_group, data_parallel, joined, hooked, rows, coalesced, barrier,
]  # fmt: skip


def collective(draw: Draw) -> None:
    """Runs one operation of all ranks."""
    r, n = dist.get_rank(), dist.get_world_size()
    base = counted(draw.randrange(100), draw.choice([3, 5000, 100_000]))
    root = draw.randrange(n)
    draw.choice(COLLECTIVES)(Drawn(r, n, root, base))


# -- a worker's part of a run ------------------------------------------------------------------


def attempt(operation: Callable[[], object], name: str) -> bool:
    """Runs an operation and notes how it ended; returns whether its value was right."""
    began, outcome = time.monotonic(), "right"
    try:
        operation()
    except BaseException as error:
        outcome = type(error).__name__
        if not explained(error):
            finding(f"{name}: {traceback.format_exc()}")
    if (seconds := time.monotonic() - began) > BOUND:
        finding(f"{name} took {seconds:.1f} s and ended with: {outcome}")
    with _lock:
        _outcomes[outcome] += 1
    return outcome == "right"


def explained(error: BaseException) -> bool:
    """Tells whether a fault explains an error.

    A third worker may ask the owner for a value before its creation arrives, which never comes if
    the owner gives up the creator; or after the owner has given up the worker that holds it.
    """
    said = str(error)
    orphan = isinstance(error, ValueNotFoundError) and (
        "gave up or was lost" in said or "let go or was lost" in said
    )
    return orphan or isinstance(error, WorkerLostError | CallTimeoutError)


def finding(words: str) -> None:
    with _lock:
        _findings.append(f"{me()}: {words}")


def operate(draw: Draw, until: float) -> None:
    while time.monotonic() < until:
        operation = draw.choice(OPERATIONS)
        if not attempt(partial(operation, draw), operation.__name__):
            threading.Event().wait(0.05)  # a worker that was given up is told so at once


def collect(seed: int) -> None:
    """Does collective operations until one fails: the others fail then, too."""
    begin = partial(dist.init_process_group, timeout=CALL_SECONDS)
    rounds: list[tuple[Callable[[], object], str]] = [(begin, "init_process_group")]
    draws = [random.Random(f"{seed} {i}") for i in range(ROUNDS)]
    rounds += [(partial(collective, draw), f"collective {i}") for i, draw in enumerate(draws)]
    for operation, name in rounds:
        if not attempt(operation, name):
            return
        threading.Event().wait(0.05)


def inject(faults: Sequence[Fault], began: float, draw: Draw) -> None:
    """Makes the faults that a worker makes itself, each at its time."""
    for at, kind in faults:
        threading.Event().wait(max(0.0, began + at - time.monotonic()))
        if kind == "break":
            break_connections(draw)
        elif kind == "cut":
            faulty_network().partition(me())
        else:
            faulty_network().heal()


def break_connections(draw: Draw) -> None:
    """Breaks about half of this process' connections, in the middle of whatever they carry."""
    for number in open_descriptors():
        if draw.random() < 0.5:
            with borrowed(number) as end:
                if end is not None:
                    end.shutdown(socket.SHUT_RDWR)


@contextmanager
def borrowed(number: int) -> Iterator[socket.socket | None]:
    """Yields the connection that a descriptor is; None for other things, and for pairs of sockets.

    The pairs are a loop's own, and the pipe through which this process is told what to do.
    """
    with suppress(OSError):  # it may be closed by now, or is no socket, or listens
        own = os.dup(number)
        try:
            end = socket.socket(fileno=own)
        except OSError:
            os.close(own)
            raise
        with end:
            yield end if end.getpeername() or end.getsockname() else None
            return
    yield None


def connections(*, of_grpc: bool = True) -> list[str]:
    """Returns the connections of this process, with or without gRPC's, which are those of IPv6."""
    found = []
    for number in open_descriptors():
        with borrowed(number) as end:
            if end is not None and (of_grpc or end.family != socket.AF_INET6):
                found.append(f"{number}: {end.getsockname()} to {end.getpeername()}")
    return found


def prepare() -> int:
    """Keeps the log quiet, which would be full of faults; returns the process id."""
    logging.disable(logging.CRITICAL)
    _me.append(rpc.get_worker_info().name)
    _others.extend(info.name for info in rpc.get_worker_infos() if info.name != me())
    return os.getpid()


def count_streams() -> None:
    """Counts the streams that come up from now on, by their schemes, and keeps the losses."""
    logging.disable(logging.NOTSET)
    logging.getLogger("telegrad").setLevel(logging.CRITICAL)
    log = logging.getLogger("telegrad.transport.session.carriers")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(_StreamCounter())
    rpc.on_loss(lambda info, error: _losses.append(f"{info.name}: {error}"))


class _StreamCounter(logging.Handler):
    """Counts lines such as `connected to worker1 by tcps://10.0.0.5:41233`."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "connected to %s by %s":
            where = record.getMessage().split(" by ")[1]
            _streams[where.partition(" ")[0].partition(":")[0]] += 1


def begun() -> None:
    """Waits until this worker works."""
    _begun.wait(BOUND)


def run(seed: int, seconds: float, faults: Sequence[Fault]) -> None:
    """Does random operations on the others; `report` says what was found."""
    began, rank = time.monotonic(), rpc.get_worker_info().rank
    draws = [random.Random(f"{seed} {rank} {i}") for i in range(THREADS + 1)]
    jobs: dict[str, Callable[[], None]] = {"collectives": partial(collect, seed)}
    jobs["faults"] = partial(inject, faults, began, draws[THREADS])
    for i in range(THREADS):
        jobs[f"operations {i}"] = partial(operate, draws[i], began + seconds)
    threads = [threading.Thread(target=jobs[name], name=name, daemon=True) for name in jobs]
    for thread in threads:
        thread.start()
    _begun.set()
    for thread in threads:
        thread.join(max(0.1, began + seconds + 1.5 * BOUND - time.monotonic()))
        if thread.is_alive():
            finding(f"{thread.name} hangs:\n{stacks()}")


def stacks() -> str:
    """Returns where all threads are."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


def report() -> dict[str, Any]:
    """Returns what ran here and how the operations of this worker ended; once all have ended."""
    with _lock:
        return {
            "ran": dict(_ran),
            "confirmed": _confirmed,
            "outcomes": dict(_outcomes),
            "findings": _findings,
            "losses": _losses,
            "streams": dict(_streams),
        }


def leave() -> list[str]:
    """Shuts down together with the others; returns what was found then and is left."""
    before = len(_findings)
    attempt(rpc.shutdown, "shutdown")

    def left() -> list[str]:
        gc.collect()
        memory = [to for to in open_descriptors().values() if "memfd:" in to]
        return memory + connections(of_grpc=False)  # gRPC closes its own later, if it likes

    try:
        wait_until_gone("connections or memory after shutdown", left, within=10.0)
    except LeakError as error:
        _findings.append(str(error))
    return _findings[before:]
