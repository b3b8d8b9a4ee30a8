"""Pains of users: calls that deadlock, freeze a loop, never time out, or lose their errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import tensor
from telegrad.errors import (
    BlockingCallError,
    CallCancelledError,
    CallTimeoutError,
    TelegradError,
)
from telegrad.parallel import DistributedOptimizer
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, held_references
from telegrad.testing.leaks import wait_until_gone
from tests.pains import remote_code
from tests.pains.remote_code import AbsurdError, around_softly, doors, hold, who

FEW = rpc.RpcOptions(num_threads=2)


async def blocks() -> str:
    """Served on the user loop, where nothing may block; what it is told."""
    sent = rpc.statistics().calls_sent
    try:
        rpc.rpc_sync("worker0", who)
    except BlockingCallError as error:
        assert rpc.statistics().calls_sent == sent
        return str(error)
    return "it blocked"


def test_pain_10_no_asyncio() -> None:
    """Futures are awaited on the user's loop, coroutines are served, and a blocked loop is refused."""

    async def both() -> list[object]:
        calls = [rpc.rpc_async(name, around_softly, (20, 2)) for name in ("worker0", "worker1")]
        made = rpc.remote("worker1", around_softly, (3, 2))
        return [*await asyncio.gather(*calls), await made]

    with Cluster(2, options=FEW) as cluster:
        assert cluster.call(0, lambda: asyncio.run(both())) == [20, 20, 3]
        assert "await rpc.rpc_async" in cluster.call(0, rpc.rpc_sync, "worker1", blocks)


def use_both(rounds: int) -> float:
    """One join, and collectives over the same agent as the calls."""
    dist.init_process_group()
    return remote_code.call_and_reduce(rounds)


def test_pain_17_calls_and_collectives_do_not_compose() -> None:
    """Every worker calls and reduces by turns, while the others do."""
    with Cluster(3, options=FEW) as cluster:
        assert len(set(cluster.run(use_both, 20))) == 1


def never_ending(to: str) -> dict[str, str]:
    """Each verb with a time-out of its own, on something that does not end; what each says."""
    rref = rpc.remote(to, hold, timeout=0.1)
    slow = rpc.RRef(Slow())
    verbs: dict[str, Callable[[], object]] = {
        "rpc_sync": lambda: rpc.rpc_sync(to, hold, timeout=0.1),
        "rpc_async": lambda: rpc.rpc_async(to, hold, timeout=0.1).wait(),
        "remote": lambda: fetch_once_failed(rref),
        "proxy": lambda: slow.rpc_sync(timeout=0.1).hold(),
        "wait": lambda: rpc.rpc_async(to, hold, timeout=20.0).wait(timeout=0.1),
        "gather": lambda: rpc.gather([(to, hold)], timeout=0.1).wait(),
        "stream": lambda: next(rpc.stream(to, remote_code.held_items, timeout=0.1)),
        "lookup": lambda: rpc.lookup(to, "what nobody publishes", timeout=0.1),
        "backward": lambda: backward_through(to, 0.1),
        "step": lambda: step_at(to, 0.1),
        "a collective": lambda: dist.barrier(timeout=0.1),
    }
    words = {}
    for name, verb in verbs.items():
        with pytest.raises(CallTimeoutError) as info:
            verb()
        words[name] = str(info.value)
        assert info.value.elapsed > 0.0, name
        assert info.value.phase, name
    return words


def backward_through(to: str, seconds: float) -> None:
    x = tensor(np.ones(3), requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, remote_code.held_backwards, (x,)).sum()
        dist_autograd.backward(context_id, [loss], timeout=seconds)


def step_at(to: str, seconds: float) -> None:
    weight = rpc.remote(to, remote_code.Weight)
    optimizer = DistributedOptimizer(remote_code.HeldOptimizer, [weight.rpc_sync().parameter()])
    with dist_autograd.context() as context_id:
        loss = weight.rpc_sync().forward(tensor(np.ones(3))).sum()
        dist_autograd.backward(context_id, [loss])
        optimizer.step(context_id, timeout=seconds)


def fetch_once_failed(rref: rpc.RRef[str]) -> str:
    wait_until_gone("creations", lambda: [] if "failed" in repr(rref) else [rref])
    return rref.to_here(timeout=0.2)


class Slow:
    """Its methods do not end by themselves; it remembers what ended them."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.found: list[str] = []

    def hold(self) -> str:
        return hold()

    async def wait(self) -> None:
        self.began.append("wait")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.found.append("cancelled")
            raise

    def nested(self) -> None:
        """Names more time than it has left itself, and more than this test may take."""
        self.began.append("nested")
        try:
            rpc.rpc_sync("worker0", hold, timeout=600.0)
        except TelegradError:
            self.found.append("ended with the outer call")

    def report(self) -> list[str]:
        return sorted(set(self.found))

    def starts(self) -> list[str]:
        return self.began


def expire(to: str) -> list[str]:
    """Two calls that have a third of a second; the callee hears of both ends."""
    slow = rpc.remote(to, Slow)
    assert slow.rpc_sync().report() == []
    for name in ("wait", "nested"):
        while name not in slow.rpc_sync().starts():  # else its time was over before it began
            with pytest.raises(CallTimeoutError):
                getattr(slow.rpc_sync(timeout=0.3), name)()
    wait_until_gone(
        "ends", lambda: [] if len(slow.rpc_sync().report()) == 2 else ["the callee was not told"]
    )
    found: list[str] = slow.rpc_sync().report()
    return found


def test_pain_20_timeouts_are_missing_and_the_callee_never_hears() -> None:
    doors.begin()
    try:
        with Cluster(2) as cluster:
            cluster.run(dist.init_process_group)
            words = cluster.call(0, never_ending, "worker1")
            of_the_function = ("rpc_sync", "rpc_async", "remote", "proxy", "wait", "gather")
            assert all("hold" in words[name] for name in of_the_function), words
            assert "held_items" in words["stream"]
            assert "what nobody publishes" in words["lookup"]
            assert "backward" in words["backward"]
            assert "step" in words["step"]
            assert "rank 1" in words["a collective"]
            assert cluster.call(0, expire, "worker1") == ["cancelled", "ended with the outer call"]
            doors.open.set()
    finally:
        doors.open.set()


def catch(to: str) -> rpc.Future[None]:
    """An error of a class that both ends have: its own type, attributes, cause, traceback."""
    with pytest.raises(AbsurdError, match="straße") as info:
        rpc.rpc_sync(to, remote_code.raise_it, (7,))
    assert info.value.args == ("straße C:\\new", 7) or str(info.value) == "straße C:\\new"
    assert info.value.number == 7
    assert isinstance(info.value.__cause__, KeyError)
    assert "in raise_it" in str(rpc.remote_traceback(info.value))
    with pytest.raises(AbsurdError):
        rpc.remote(to, remote_code.raise_it, (7,)).to_here()
    return rpc.rpc_async(to, remote_code.raise_it, (8,)).then(lambda done: done.value())


def test_pain_21_lost_errors_and_poor_tracebacks() -> None:
    with Cluster(2) as cluster:
        with pytest.raises(AbsurdError) as info:
            cluster.call(0, catch, "worker1").wait(20.0)
        assert info.value.number == 8
        assert any("worker1" in note for note in info.value.__notes__)


def test_pain_19_nobody_sees_what_hangs() -> None:
    """What waits says for what, on whom and since when; counters say how much of it there is."""
    doors.begin()

    def look() -> tuple[str, int, int]:
        call = rpc.rpc_async("worker1", hold)
        remote_code.are_held(1)
        words, pending = repr(call), rpc.statistics().pending_calls
        doors.open.set()
        call.wait()
        return words, pending, rpc.statistics().pending_calls

    with Cluster(2) as cluster:
        words, pending, after = cluster.call(0, look)
    assert (pending, after) == (1, 0)
    for part in ("remote_code:hold", "'worker1'", "pending", " s old"):
        assert part in words


def test_pain_24_two_event_loops() -> None:
    """Two loops of the user's own await calls at once; each stays its thread's."""

    async def ask(times: int) -> list[str]:
        return [await rpc.rpc_async("worker1", who) for _ in range(times)]

    def two_loops() -> list[list[str]]:
        found: list[list[str]] = []
        agent = current_agent()

        def own() -> None:
            with seams.use_agent(agent):
                found.append(asyncio.run(ask(20)))

        threads = [threading.Thread(target=own) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    with Cluster(2) as cluster:
        assert cluster.call(0, two_loops) == [["worker1"] * 20] * 2


class Straggler:
    """Counts the coroutines that began, and those that were cancelled."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0

    async def wait(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def counts(self) -> tuple[int, int]:
        return self.begun, self.cancelled


def counts_are(straggler: rpc.RRef[Straggler], begun: int, cancelled: int) -> None:
    wait_until_gone(
        "coroutines",
        lambda: (
            []
            if (counts := straggler.rpc_sync().counts()) == (begun, cancelled)
            else [f"{counts[0]} began, {counts[1]} were cancelled"]
        ),
    )


def cancel_many(to: str, n: int) -> int:
    """Cancels calls that are served; returns how many are still pending here."""
    straggler = rpc.remote(to, Straggler)
    futures: list[rpc.Future[None]] = [straggler.rpc_async().wait() for _ in range(n)]
    counts_are(straggler, n, 0)
    assert all(future.cancel() for future in futures)
    for future in futures:
        with pytest.raises(CallCancelledError):
            future.wait()
    counts_are(straggler, n, n)
    return rpc.statistics().pending_calls


def test_pain_25_cancellation_leaks() -> None:
    with Cluster(2) as cluster:
        assert cluster.call(0, cancel_many, "worker1", 300) == 0
        for counts in cluster.run(held_references):
            assert counts["pending calls"] == 0


def fastest_two() -> list[str]:
    """Two of three answer; the third worker is told that its own is not wanted."""
    straggler = rpc.remote("worker3", Straggler)
    late = straggler.rpc_async().wait()
    counts_are(straggler, 1, 0)
    answers = rpc.gather([late, ("worker2", who), ("worker1", who)], k=2).wait()
    counts_are(straggler, 1, 1)
    return answers


def test_pain_39_everybody_waits_for_the_slowest() -> None:
    with Cluster(4) as cluster:
        assert cluster.call(0, fastest_two) == ["worker2", "worker1"]
