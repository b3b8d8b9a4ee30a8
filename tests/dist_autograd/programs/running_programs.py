"""Runs random programs on living workers: threads and tasks, every form of call, every fate of one."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, no_grad
from telegrad.dist_autograd.seams import Container
from telegrad.errors import CallTimeoutError, UnknownWorkerError, WorkerLostError
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from tests.dist_autograd.programs.doom import LIMIT, doomed, lost_call
from tests.dist_autograd.programs.packing import Packed, fetched, pack
from tests.dist_autograd.programs.random_programs import (
    ASKED,
    CANCELLED,
    GIVEN,
    NO_GRAD,
    RAISES,
    SPREAD,
    TIMES_OUT,
    UNREAD,
    Asked,
    Body,
    Call,
    Gradients,
    Path,
    Program,
    Running,
    make_leaves,
    run_body,
    total,
)

__all__ = ["backward", "gradients_of", "open_contexts", "run_calls_of", "run_mine"]

T = TypeVar("T")

SOON = 0.01  # seconds after which a call times out that would wait for ever
CLOSED_FORMS = ("sync", "async", "async def", "method")  # of calls that give nothing

_leaves: dict[str, list[Tensor]] = {}
_leaves_lock = threading.Lock()
_gates: defaultdict[Path, threading.Event] = defaultdict(threading.Event)
_serial = itertools.count(1)  # the first number of all paths of one run of a program


class RefusedError(Exception):
    """What a call raises that is to fail."""


@dataclass(frozen=True)
class Request:
    """What a call carries."""

    path: Path
    fate: str
    packing: str
    further: int
    body: Body
    given: Packed


# -- what workers serve ----------------------------------------------------------------------------


def leaves() -> list[Tensor]:
    """The leaves of the worker that this runs on; all programs share them."""
    info = rpc.get_worker_info()
    with _leaves_lock:
        return _leaves.setdefault(info.name, make_leaves(info.rank))


def serve(request: Request) -> Packed:
    given = _given(request)
    if request.fate == TIMES_OUT:
        _gates[request.path].wait(LIMIT)
    return _answer(request, in_thread(drive(_body(request, given), task=False)))


async def serve_softly(request: Request) -> Packed:
    given = _arrived(request, await fetched(request.packing, request.given, task=True))
    if request.fate == TIMES_OUT:
        await asyncio.sleep(LIMIT)  # until it is cancelled
    return _answer(request, await drive(_body(request, given), task=True))


@rpc.functions.async_execution
def hand_on(request: Request) -> rpc.Future[Packed]:
    given = [each * leaves()[0] for each in _given(request)]
    further = replace(request, packing="list", given=pack("list", given))

    def doubled(future: rpc.Future[Packed]) -> Packed:
        return pack(request.packing, [2.0 * each for each in future.value()])

    with rpc_mode(request.fate):
        return rpc.rpc_async(request.further, serve, (further,)).then(doubled)


def produce(request: Request) -> Iterator[Tensor]:
    yield from in_thread(drive(_body(request, _given(request)), task=False))


async def produce_softly(request: Request) -> AsyncIterator[Tensor]:
    given = _arrived(request, await fetched(request.packing, request.given, task=True))
    for each in await drive(_body(request, given), task=True):
        yield each


class Server:
    """Serves by a method, through a reference."""

    def serve(self, request: Request) -> Packed:
        return serve(request)


def _given(request: Request) -> list[Tensor]:
    return _arrived(request, in_thread(fetched(request.packing, request.given, task=False)))


def _body(request: Request, given: list[Tensor]) -> Running:
    return run_body(request.body, request.path, given, leaves())


def _arrived(request: Request, given: list[Tensor]) -> list[Tensor]:
    for doom in doomed:
        doom.on_call()
        doom.on_values(given)
    if request.fate == NO_GRAD:
        assert not any(each.requires_grad for each in given)
    return given


def _answer(request: Request, values: list[Tensor]) -> Packed:
    if request.fate == RAISES:
        raise RefusedError
    return pack(request.packing, values)


# -- who calls -------------------------------------------------------------------------------------


def rpc_mode(fate: str) -> Any:
    """Returns the block in which such a call is made, and its value fetched."""
    return no_grad() if fate == NO_GRAD else nullcontext()


def post(path: Path, call: Call, arguments: list[Tensor]) -> Any:
    """Begins a call; returns a Future, an RRef or a Stream."""
    closed = call.fate in (RAISES, CANCELLED, TIMES_OUT, UNREAD)
    form = "async" if closed and call.form not in CLOSED_FORMS else call.form
    given = pack(call.packing, arguments)
    request = Request(path, call.fate, call.packing, call.further, call.body, given)
    to, args = call.callee, (request,)
    timeout = SOON if call.fate == TIMES_OUT else None
    match form:
        case "remote":
            return rpc.remote(to, serve, args)
        case "method":
            return rpc.remote(to, Server).rpc_async(timeout=timeout).serve(request)
        case "async_execution":
            return rpc.rpc_async(to, hand_on, args)
        case "stream":
            return rpc.stream(to, produce, args)
        case "async stream":
            return rpc.stream(to, produce_softly, args)
        case "async def":
            return rpc.rpc_async(to, serve_softly, args, timeout=timeout)
        case _:
            return rpc.rpc_async(to, serve, args, timeout=timeout)


def in_thread(running: Coroutine[Any, Any, T]) -> T:
    """Runs to its end what waits by blocking its thread, where a task would await."""
    try:
        running.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("it has awaited something")


async def drive(running: Running, *, task: bool) -> list[Tensor]:
    """Runs a body, in a task or in this thread."""
    found: list[list[Tensor]] | None = None
    while True:
        try:
            asked = next(running) if found is None else running.send(found)
        except StopIteration as end:
            return list(end.value)
        found = await run_calls(asked, task=task)


async def run_calls(asked: Asked, *, task: bool) -> list[list[Tensor]]:
    """Has calls under way at once; one of the form sync ends before the next begins."""
    found: list[Any] = []
    for path, call, arguments in asked:
        try:
            with rpc_mode(call.fate):
                pending = post(path, call, arguments)
                soon = call.form == "sync"
                found.append(await finish(path, call, pending, task=task) if soon else pending)
        except (WorkerLostError, UnknownWorkerError) as lost:
            found.append(lost_call(path, lost))
    for i, (path, call, _) in enumerate(asked):
        if not isinstance(found[i], list):
            try:
                with rpc_mode(call.fate):
                    found[i] = await finish(path, call, found[i], task=task)
            except (WorkerLostError, UnknownWorkerError) as lost:
                found[i] = lost_call(path, lost)
    return found


async def finish(path: Path, call: Call, pending: Any, *, task: bool) -> list[Tensor]:
    """Returns the results of a call."""
    if isinstance(pending, rpc.Stream):
        return await read(pending, call.read, task=task)
    if isinstance(pending, rpc.RRef):
        packed = await pending if task else pending.to_here()
        return as_asked(call, pending, await fetched(call.packing, packed, task=task))
    if call.fate in (CANCELLED, UNREAD):
        return given_up(call, pending)
    try:
        packed = await pending if task else pending.wait()
    except (RefusedError, CallTimeoutError) as error:
        return failed(path, call, error)
    assert call.fate not in (RAISES, TIMES_OUT)
    return await fetched(call.packing, packed, task=task)


async def read(stream: Any, count: int, *, task: bool) -> list[Tensor]:
    """Returns the first items of a stream."""
    if not task:
        with stream as items:
            return list(itertools.islice(items, count))
    found: list[Tensor] = []
    async with stream as items:
        while len(found) < count and (item := await anext(items, None)) is not None:
            found.append(item)
    return found


def as_asked(call: Call, rref: rpc.RRef[Any], values: list[Tensor]) -> list[Tensor]:
    """Returns what was fetched; an own value is there as it is, with all that it needs."""
    own = call.fate == NO_GRAD and rref.is_owner()
    return [each.detach() for each in values] if own else values


def given_up(call: Call, pending: Any) -> list[Tensor]:
    """Cancels a call, or goes on without looking at it."""
    if call.fate == CANCELLED:
        pending.cancel()
    return []


def failed(path: Path, call: Call, error: Exception) -> list[Tensor]:
    """Checks that a call failed that had to."""
    if call.fate == TIMES_OUT and isinstance(error, CallTimeoutError):
        _gates[path].set()  # what it does now is late
    elif call.fate != RAISES or not isinstance(error, RefusedError):
        raise error
    return []


# -- a whole program -------------------------------------------------------------------------------


def gradients_of(context_id: int) -> dict[int, Any]:
    """This worker's gradients in a context, by number of the leaf."""
    found = dist_autograd.get_gradients(context_id)
    own = leaves()
    assert all(leaf.grad is None for leaf in own)
    numbered = {i: found.pop(leaf).data for i, leaf in enumerate(own) if leaf in found}
    assert not found
    return numbered


def open_contexts() -> int:
    """How many contexts are open on this worker."""
    return len(current_agent().attachments[Container])


def loss_of(packed: Sequence[Tensor]) -> Tensor:
    """The loss of a program, made where it is asked for."""
    losses = total(list(packed))
    return sum(losses[1:], start=losses[0])


def backward(program: Program, context_id: int, values: list[Tensor]) -> None:
    """Asks for the gradients as the program says."""
    values = [value for value in values if value.requires_grad]
    if not values:
        return
    start = start_of(program, context_id, values)
    for n in range(program.passes):
        start(n < program.passes - 1)


def start_of(program: Program, context_id: int, values: list[Tensor]) -> Callable[[bool], None]:
    """Returns what runs one pass, and is told whether to retain the graph."""
    roots: list[Any] = total(values)
    gradients: list[Any] | None = None
    if program.roots == ASKED:
        rref = rpc.remote(program.asked, loss_of, (values,))
        return lambda retain: rref.backward(context_id, retain_graph=retain)
    if program.roots == GIVEN:
        roots, gradients = [*values], [2.0 * value.data + 1.0 for value in values]
    elif program.roots == SPREAD:
        roots[::2] = [rpc.remote(program.asked, loss_of, ([each],)) for each in values[::2]]
    return lambda retain: dist_autograd.backward(context_id, roots, gradients, retain_graph=retain)


def run_calls_of(program: Program) -> tuple[int, list[Tensor]]:
    """Runs all but backward; returns the first number of its paths, and its results."""
    serial = next(_serial)
    body = run_body(program.body, (serial,), (), leaves())
    return serial, in_thread(drive(body, task=False))


async def run_one(program: Program, living: Sequence[int], *, task: bool) -> Gradients:
    """Runs a program in a context of its own; returns the gradients of all workers."""
    with dist_autograd.context() as context_id:
        body = run_body(program.body, (next(_serial),), (), leaves())
        values = await drive(body, task=task)
        if task:
            await rpc.to_thread(backward, program, context_id, values)
        else:
            backward(program, context_id, values)
        futures = {rank: rpc.rpc_async(rank, gradients_of, (context_id,)) for rank in living}
        return {
            (rank, i): gradient
            for rank, future in futures.items()
            for i, gradient in (await future if task else future.wait()).items()
        }


async def run_as_task(program: Program, living: Sequence[int]) -> Gradients:
    return await run_one(program, living, task=True)


def run_mine(case: Sequence[Program], living: Sequence[int]) -> dict[int, Gradients]:
    """Runs the programs of this worker at the same time; returns the gradients of each."""
    agent = current_agent()
    mine = {i: program for i, program in enumerate(case) if program.origin == agent.info.rank}

    def run(program: Program) -> Gradients:
        with seams.use_agent(agent):
            if not program.task:
                return in_thread(run_one(program, living, task=False))
            return rpc.rpc_sync(agent.info.rank, run_as_task, (program, list(living)))

    with ThreadPoolExecutor(max(1, len(mine))) as pool:
        futures = {i: pool.submit(run, program) for i, program in mine.items()}
        return {i: future.result() for i, future in futures.items()}
