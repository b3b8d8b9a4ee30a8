"""What goes on between two workers while their network fails: every kind of traffic, in rounds.

A worker begins `flows` to another one. Each runs rounds until it is told to stop, checks what every
round brings, and in the end that nothing of all its rounds was lost and nothing was done twice.

    calls       one call after the other       each ran once, in order
    many calls  50 at a time                   each ran once
    stream      items of a generator           each number once, in order
    fetch       RRef.to_here of an array       its sum
    push        an array as an argument        its sum; each ran once
    reduce      all_reduce among the two       its sum
    backward    gradients through a call       their values
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Final, final

import numpy as np

import telegrad as tg
from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor
from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing import leaks
from telegrad.transport.session.carriers import Carriers
from telegrad.types import Array
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import LIMIT, who

__all__ = ["KINDS"]

Round = Callable[[int], object]

KINDS: Final = ("calls", "many calls", "stream", "fetch", "push", "reduce", "backward")
MANY, ITEMS = 50, 20
LONG = 300.0  # seconds for one call: longer than any test

_ran: dict[str, list[int]] = {}
_flows: dict[str, _Flow] = {}
_losses: list[tuple[str, str]] = []


# -- what runs on the other one ------------------------------------------------------------------


async def note(key: str, number: int) -> None:
    """Writes down that a call ran; on the loop, so that there is no race to count right."""
    _ran.setdefault(key, []).append(number)


def note_sum(key: str, number: int, array: Array) -> float:
    _ran.setdefault(key, []).append(number)
    return float(array[:: max(1, array.size // 64)].sum())


def ran(key: str) -> list[int]:
    return _ran.get(key, [])


async def numbers() -> AsyncIterator[int]:
    i = 0
    while True:
        yield i
        i += 1


def ones(nbytes: int) -> Array:
    return np.ones(nbytes // 8)


def cubes(x: Tensor) -> Tensor:
    return x * x * x


# -- flows ---------------------------------------------------------------------------------------


@final
class _Flow:
    """One kind of traffic to one worker, in a thread of its own."""

    def __init__(self, kind: str, to: str, nbytes: int) -> None:
        self.key = f"{rpc.get_worker_info().name} {kind} {to}"
        self.rounds = 0
        self.failure: Failure | None = None
        self._to, self._nbytes = to, nbytes
        self._stop = threading.Event()
        run = getattr(self, f"_{kind.replace(' ', '_')}")
        self._thread = threading.Thread(target=self._run, args=(run,), name=self.key, daemon=True)
        self._thread.start()

    def end(self) -> Failure:
        """Ends it after its round; returns what it raised, if anything."""
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), f"{self.key} does not end"
        assert self.failure is not None
        return self.failure

    def _run(self, run: Callable[[], None]) -> None:
        self.failure = failure_of(run)

    def _repeat(self, one: Round) -> None:
        while not self._stop.is_set():
            one(self.rounds)
            self.rounds += 1

    def _check_ran(self, expected: int) -> None:
        found = rpc.rpc_sync(self._to, ran, (self.key,), timeout=LONG)
        assert sorted(found) == list(range(expected)), (expected, found)

    def _calls(self) -> None:
        self._repeat(lambda i: rpc.rpc_sync(self._to, note, (self.key, i), timeout=LONG))
        self._check_ran(self.rounds)
        found = rpc.rpc_sync(self._to, ran, (self.key,), timeout=LONG)
        assert found == sorted(found)

    def _many_calls(self) -> None:
        def one(i: int) -> None:
            calls = [(self.key, i * MANY + j) for j in range(MANY)]
            rpc.wait_all([rpc.rpc_async(self._to, note, call, timeout=LONG) for call in calls])

        self._repeat(one)
        self._check_ran(self.rounds * MANY)

    def _stream(self) -> None:
        with rpc.stream(self._to, numbers) as items:

            def one(i: int) -> None:
                for j in range(ITEMS):
                    assert next(items) == i * ITEMS + j

            self._repeat(one)

    def _fetch(self) -> None:
        rref = rpc.remote(self._to, ones, (self._nbytes,), timeout=LONG)
        count = self._nbytes // 8

        def one(_: int) -> None:
            assert rref.to_here(timeout=LONG).sum() == count

        self._repeat(one)

    def _push(self) -> None:
        array = ones(self._nbytes)
        expected = float(array[:: max(1, array.size // 64)].sum())

        def one(i: int) -> None:
            found = rpc.rpc_sync(self._to, note_sum, (self.key, i, array), timeout=LONG)
            assert found == expected

        self._repeat(one)
        self._check_ran(self.rounds)

    def _reduce(self) -> None:
        """Runs at both ends; whoever is to stop says so in the first element."""
        ranks = sorted(rpc.get_worker_info(name).rank for name in (who(), self._to))
        group = dist.new_group(ranks, timeout=LONG)
        stopped = False
        while not stopped:
            array = ones(self._nbytes // 8)
            array[0] = float(self._stop.is_set())
            dist.all_reduce(array, group=group, timeout=LONG)
            assert (array[1:] == 2.0).all()
            stopped = bool(array[0])
            self.rounds += 1

    def _backward(self) -> None:
        def one(i: int) -> None:
            x = tg.tensor(np.arange(1.0, 65.0) + i, requires_grad=True)
            with dist_autograd.context() as context_id:
                y = rpc.rpc_sync(self._to, cubes, (x,), timeout=LONG)
                dist_autograd.backward(context_id, [y.sum()], timeout=LONG)
                gradient = dist_autograd.get_gradients(context_id)[x]
            np.testing.assert_allclose(gradient.data, 3 * x.data**2)

        self._repeat(one)


# -- what the test asks the workers ----------------------------------------------------------------


def meet() -> list[str]:
    """Calls everybody; notes losses from now on."""
    rpc.on_loss(_note_loss)
    return [rpc.rpc_sync(info, who, timeout=LIMIT) for info in rpc.get_worker_infos()]


def connections() -> dict[tuple[str, int], Carriers]:
    """Returns this worker's connections by name and incarnation; an exchange shows none."""
    return current_agent().exchange._peers.known


def _note_loss(worker: rpc.WorkerInfo, error: WorkerLostError) -> None:
    _losses.append((worker.name, type(error).__name__))


def losses() -> list[tuple[str, str]]:
    return list(_losses)


def begin(kinds: list[str], to: str, nbytes: int) -> None:
    """Begins flows from here to a worker."""
    for kind in kinds:
        flow = _Flow(kind, to, nbytes)
        _flows[flow.key] = flow


def rounds() -> dict[str, int]:
    """Returns how many rounds each flow has ended."""
    return {key: flow.rounds for key, flow in _flows.items()}


def wait_for_rounds(more: int, than: dict[str, int]) -> dict[str, int]:
    """Waits until each flow named has ended so many more rounds, or has failed."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.02)):
        missing = [
            key
            for key, before in than.items()
            if key in _flows and _flows[key].failure is None and _flows[key].rounds < before + more
        ]
        if not missing:
            return rounds()
        pause.wait(0.02)
    raise AssertionError(f"no {more} rounds more within {LIMIT:g} s: {missing}")


def wait_for_stall(keys: list[str], pause: float) -> dict[str, int]:
    """Waits until none of the flows named has ended a round between two looks."""
    before, wait = dict[str, int](), threading.Event()
    for _ in range(int(LIMIT / pause)):
        found = {key: flow.rounds for key, flow in _flows.items() if key in keys}
        if found == before:
            return found
        before = found
        wait.wait(pause)
    raise AssertionError(f"these go on: {keys}")


def end() -> dict[str, Failure]:
    """Ends all flows; returns how each ended."""
    return {key: flow.end() for key, flow in _flows.items()}


def failures(peer: str) -> dict[str, Failure]:
    """Waits until all flows to a worker have failed; returns how."""
    mine = {key: flow for key, flow in _flows.items() if key.endswith(f" {peer}")}
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.02)):
        if all(flow.failure is not None for flow in mine.values()):
            return {key: flow.failure for key, flow in mine.items() if flow.failure is not None}
        pause.wait(0.02)
    waiting = [key for key, flow in mine.items() if flow.failure is None]
    raise AssertionError(f"these still wait: {waiting}")


def wait_until_evicted() -> Failure:
    """Calls until it raises `EvictedError`; returns that."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.1)):
        for info in rpc.get_worker_infos():
            found = failure_of(lambda to=info: rpc.rpc_sync(to, who, timeout=LIMIT))  # type: ignore[misc]
            if found.kind == f"{EvictedError.__module__}:{EvictedError.__qualname__}":
                return found
        pause.wait(0.1)
    raise AssertionError("nobody told this worker that it is evicted")


def wait_until_dropped(name: str) -> None:
    """Waits until the coordinator, which runs here, has given up a worker."""
    coordinator = current_agent().attachments[JoinedJob].coordinator
    assert coordinator is not None

    def left() -> list[str]:
        return [each.info.name for each in coordinator.members if each.info.name == name]

    leaks.wait_until_gone("member", left, within=LIMIT)


def loss_of_coordinator() -> Failure:
    """Waits until this worker has lost its coordinator; returns what says so."""
    store = current_agent().attachments[JoinedJob].store
    return failure_of(lambda: store.get("set by nobody", LIMIT))


def calls(to: str) -> Failure:
    """Calls a worker; returns how that ended."""
    return failure_of(lambda: rpc.rpc_sync(to, who, timeout=LIMIT))


def reduces_over_all(nbytes: int) -> float:
    """Adds up arrays of ones over all workers; returns the smallest and only element."""
    group = dist.new_group([info.rank for info in rpc.get_worker_infos()], timeout=LONG)
    array = ones(nbytes)
    dist.all_reduce(array, group=group, timeout=LONG)
    assert (array == array[0]).all()
    return float(array[0])
