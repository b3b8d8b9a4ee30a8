"""What the workers of these tests run; importable by spawned processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.arrays import shared_empty
from telegrad.collectives import ProcessGroup
from telegrad.collectives.link import Link
from telegrad.collectives.messages import Signature
from telegrad.collectives.operation import Call
from telegrad.collectives.seams import Groups
from telegrad.rpc.seams import current_agent
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import Array

# One step above what goes without asking, in float64.
LARGE = 80_001


def begin(timeout: float = 30.0) -> int:
    """Makes the group of all, unless an earlier program has; returns the rank."""
    if current_agent().attachments[Groups].world is None:
        dist.init_process_group(timeout=timeout)
    return dist.get_rank()


def gathers(n: int) -> list[tuple[int, int]]:
    """Gathers arrays of all shapes; returns their values and numbers of axes."""
    r = begin()
    gathered = dist.all_gather(np.full((2,) * (r % 3), r))
    joined = dist.all_gather_single(np.full(r, r))
    np.testing.assert_array_equal(joined, np.repeat(np.arange(n), np.arange(n)))
    return [(int(each.flat[0]), each.ndim) for each in gathered]


def pass_round(array: Array, r: int, n: int) -> Array:
    """Sends to the right and receives from the left."""
    received = np.empty_like(array)
    if r % 2 == 0:
        dist.send(array, (r + 1) % n)
    dist.recv(received, (r - 1) % n)
    if r % 2 == 1:
        dist.send(array, (r + 1) % n)
    return received


def many_at_once(count: int, size: int) -> list[float]:
    """Starts operations one after the other and waits for the last first."""
    r = begin()
    arrays = [np.full(size, float(r + i)) for i in range(count)]
    works = [dist.all_reduce(array, async_op=True) for array in arrays]
    gathered = dist.all_gather(np.array([r]), async_op=True)
    root = np.array([float(r)])
    sent = dist.broadcast(root, 1, async_op=True)
    assert [int(each[0]) for each in gathered.wait()] == list(range(dist.get_world_size()))
    sent.wait()
    assert root[0] == 1.0
    for work in reversed(works):
        work.wait()
        assert work.done()
        assert work.exception() is None
    return [float(array.sum()) for array in arrays]


def in_subgroups() -> dict[str, Any]:
    """Two groups that overlap, one of them in an order of its own."""
    r = begin()
    found: dict[str, Any] = {}
    for name, ranks in (("pair", [0, 2]), ("turned", [2, 1]), ("again", [0, 2])):
        group = dist.new_group(ranks)
        found[name] = (group.name, group.rank, group.size, list(group.ranks))
        assert dist.get_rank(group) == group.rank
        assert dist.get_world_size(group) == 2
        if group.rank < 0:
            with_words = refusal(lambda group=group: dist.barrier(group))  # type: ignore[misc]
            assert "no member" in with_words, with_words
            continue
        array = np.array([r + 1.0])
        dist.all_reduce(array, group=group)
        found[f"{name} sum"] = float(array[0])
        dist.broadcast(array, ranks[1], group)
        gathered = dist.all_gather(np.array([r]), group=group)
        assert [int(each[0]) for each in gathered] == ranks
        if r == ranks[0]:
            dist.send(array, ranks[1], group=group)
        else:
            dist.recv(array, ranks[0], group=group)
    return found


def freed() -> None:
    """Waits until nothing holds the arrays of operations that are over, without a collection."""
    arrays: list[weakref.ref[np.ndarray[Any, Any]]] = []
    begin()
    gc.disable()
    try:
        for run in (dist.all_reduce, lambda array: dist.broadcast(array, 0)):
            array = np.ones(3)
            arrays.append(weakref.ref(array))
            run(array)
            del array
        wait_until_gone("arrays", lambda: [each for each in arrays if each() is not None])
    finally:
        gc.enable()


def more_than_the_allowance(size: int, count: int) -> list[float]:
    """Rank 0 sends more than may go unasked while rank 1 takes the last tag first."""
    r = begin()
    if r == 0:
        for i in range(count):
            dist.send(np.full(size, float(i)), 1, tag=0)
        dist.send(np.full(size, -1.0), 1, tag=1)
        return [float(dist.world_group().statistics().messages_sent)]
    taken = []
    for _ in range(count):
        array = np.empty(size)
        dist.recv(array, 0, tag=0)
        taken.append(float(array[-1]))
    dist.recv(array, 0, tag=1)
    return [*taken, float(array[0])]


async def awaited() -> list[float]:
    """On a loop of the user's own."""
    r = begin()
    array = np.array([float(r)])
    await dist.all_reduce(array, async_op=True)
    gathered = await dist.all_gather(array, async_op=True)
    return [float(each[0]) for each in gathered]


def through_a_call() -> list[float]:
    """Collectives inside functions that are called: rank 0 calls, all take part."""
    r = begin()
    dist.barrier()  # who is called has begun
    if r:
        return []
    futures = [rpc.rpc_async(each, served_sum) for each in range(dist.get_world_size())]
    return rpc.wait_all(futures)


def served_sum() -> float:
    array = np.array([float(dist.get_rank() + 1)])
    dist.all_reduce(array)
    return float(array[0])


async def blocks_the_user_loop() -> str:
    """Runs on the user loop: a blocking verb is refused, the other form works."""
    words = refusal(dist.barrier)
    array = np.array([1.0])
    await dist.all_reduce(array, async_op=True)
    return f"{words} {array[0]}"


async def destroys_on_the_user_loop() -> str:
    """Refused where it ends the agent, before anything is left."""
    words = refusal(dist.destroy_process_group)
    await dist.all_reduce(np.ones(1), async_op=True)
    return words


def calls_blocks_the_user_loop() -> str:
    r = begin()
    return rpc.rpc_sync(r, blocks_the_user_loop)


def refusal(call: Callable[[], object]) -> str:
    """Returns the class and words of what a call raises, notes included."""
    try:
        call()
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        return "\n".join([f"{type(error).__name__}: {error}", *notes])
    return "nothing"


# -- ranks that do not agree -----------------------------------------------------------------


def scatter(src: int, group: ProcessGroup | None) -> None:
    """Scatters arrays of two items."""
    parts = [np.ones(2)] * dist.get_world_size() if dist.get_rank() == src else None
    dist.scatter(np.ones(2), parts, src, group)


def receive_from(src: int, group: ProcessGroup | None) -> None:
    """One rank sends an array to each other one."""
    if dist.get_rank() != src:
        dist.recv(np.ones(3), src, group=group)
        return
    for r in range(dist.get_world_size()):
        if r != src:
            dist.send(np.ones(3), r, group=group)


def coalesced(group: ProcessGroup | None) -> None:
    with dist.coalesced(group):
        dist.all_reduce(np.ones(3), group=group)
        dist.broadcast(np.ones(3), 1, group)


NAMED: dict[str, Callable[[ProcessGroup | None], object]] = {
    "coalesced": coalesced,
    "gather to 0": lambda group: dist.gather(np.ones(3), 0, group),
    "scatter from 0": lambda group: scatter(0, group),
    "all_gather_object": lambda group: dist.all_gather_object("a", group=group),
    "gather_object to 0": lambda group: dist.gather_object("a", 0, group),
    "broadcast much": lambda group: dist.broadcast(np.ones(10 * LARGE), 0, group),
    "recv from 1": lambda group: receive_from(1, group),
}


def do(what: str, group: ProcessGroup | None = None) -> None:
    """Runs one operation that a test names."""
    if what in NAMED:
        NAMED[what](group)
        return
    verb, _, rest = what.partition(" ")
    size = int(rest) if rest.isdigit() else 3
    array = np.ones(size)
    if verb == "barrier":
        dist.barrier(group)
    elif verb == "broadcast":
        dist.broadcast(np.ones(3), size, group)
    elif verb == "all_gather":
        dist.all_gather(np.ones(3, rest or "float64"), group=group)
    elif rest.startswith("dtype="):
        dist.all_reduce(np.ones(3, rest[6:]), group=group)
    else:
        dist.all_reduce(array, group=group)


def disagree(ranks: Sequence[Sequence[str]]) -> list[str]:
    """Runs the operations of this rank, then one more, then one in a new group."""
    r = begin(timeout=20.0)
    said: list[str] = []
    for what in ranks[r]:
        words = refusal(lambda what=what: do(what))  # type: ignore[misc]
        if words != "nothing":
            said.append(words)
            break
    said.append(refusal(dist.barrier))
    group = dist.new_group(range(dist.get_world_size()))
    array = np.ones(1)
    dist.all_reduce(array, group=group)
    said.append(str(array[0]))
    return said


def wrong_message(kind: str) -> list[str]:
    """Rank 0 sends what rank 1 does not want; rank 2 waits for something else."""
    r = begin(timeout=20.0)
    kinds: dict[str, tuple[Array, Array]] = {
        "small": (np.ones(3), np.ones(4)),
        "large": (np.ones(LARGE), np.ones(LARGE, np.int64)),
    }
    sent, wanted = kinds[kind]
    if r == 0:
        first = refusal(lambda: dist.send(sent, 1))
        return [first, refusal(dist.barrier)]
    if r == 1:
        return [refusal(lambda: dist.recv(wanted, 0)), refusal(dist.barrier)]
    return [refusal(dist.barrier), refusal(dist.barrier)]


# -- ranks that leave or are late ------------------------------------------------------------


def leaves_early(leaver: int, count: int, how: str) -> list[str]:
    """The leaver takes part in `count` operations, the others in one more."""
    r = begin(timeout=20.0)
    for _ in range(count):
        dist.all_reduce(np.ones(3))
    if r == leaver:
        dist.destroy_process_group()
        return [refusal(dist.barrier)]
    if how == "async":
        work = dist.all_reduce(np.ones(3), async_op=True)
        return [refusal(work.wait), refusal(dist.barrier)]
    return [refusal(lambda: dist.all_reduce(np.ones(3))), refusal(dist.barrier)]


def leaves_after_sending() -> list[str]:
    """Rank 0 sends one message and leaves; rank 1 takes it, and wants another one."""
    r = begin(timeout=20.0)
    if r == 0:
        dist.send(np.ones(3), 1, tag=4)
        dist.destroy_process_group()
        return []
    array = np.zeros(3)
    dist.recv(array, 0, tag=4)
    return [
        str(array),
        refusal(lambda: dist.recv(array, 0, tag=4)),
    ]


def leaves_after_taking() -> list[str]:
    """Rank 1 takes a message and leaves; rank 0 hears that before its `send` goes on."""
    r = begin(timeout=20.0)
    if r == 1:
        array = np.zeros(3)
        dist.recv(array, 0, tag=4)
        dist.destroy_process_group()
        return [str(array)]
    group: Any = dist.world_group()
    post, on_left, left = group.post, group.on_left, threading.Event()

    def slow_post(*args: Any) -> None:
        post(*args)
        assert left.wait(20.0)

    def notice(*args: Any) -> None:
        on_left(*args)
        left.set()

    group.post, group.on_left = slow_post, notice
    return [refusal(lambda: dist.send(np.ones(3), 1, tag=4)) for _ in range(2)]


def comes_late(late: int, limit: float) -> list[str]:
    """One rank never comes; the others say who."""
    r = begin()
    if r == late:
        return [refusal(lambda: wait_for_end(dist.world_group())), refusal(dist.barrier)]
    words = refusal(lambda: dist.all_reduce(np.ones(LARGE), timeout=limit))
    return [words, refusal(dist.barrier)]


def wait_for_end(group: ProcessGroup) -> None:
    """Waits until the group is over, without taking part in it."""
    gate = threading.Event()
    while not group.failed:
        gate.wait(0.01)


def leaves_and_returns() -> list[float]:
    """Leaves all groups and makes them again, while the other rank may be behind."""
    found = []
    for _ in range(2):
        begin()
        array = np.ones(3)
        dist.all_reduce(array)
        found.append(float(array[0]))
        dist.destroy_process_group()
        dist.destroy_process_group()
    return found


def forms_late(late: int, limit: float) -> str:
    """One rank calls new_group when the others have given up."""
    r = begin()
    group = dist.world_group()
    if r == late:
        for other in range(3):
            if other != late:
                dist.recv(np.zeros(1), other, group=group)
    said = refusal(lambda: dist.new_group([0, 1, 2], timeout=limit))
    if r != late:
        dist.send(np.zeros(1), late, group=group)
    return said


def waits_shortly() -> list[str]:
    r = begin()
    if r:
        dist.recv(np.zeros(1), 0)
    array = np.ones(2)
    work = dist.all_reduce(array, async_op=True)
    if r:
        work.wait()
        return []
    words = refusal(lambda: work.wait(0.05))
    dist.send(np.zeros(1), 1)
    work.wait()
    return [words, str(array[0])]


def waits_long(what: str, warn_after: float) -> None:
    """Waits for an operation of all ranks, or for a group of all; warns soon."""
    current_agent().attachments[Groups].warn_after = warn_after
    begin()
    if what == "group":
        dist.new_group([0, 1, 2])
    elif what == "subgroups":
        dist.new_subgroups(3)
    elif what == "split":
        dist.split_group(None, [[0, 1, 2]])
    elif what == "shrunk":
        dist.shrink_group()
    else:
        do(what)


# -- ranks that die --------------------------------------------------------------------------


def entered(count: int) -> None:
    """Returns once this rank has entered so many operations of all, and waits in the last."""
    gate = threading.Event()
    while True:
        group = current_agent().attachments[Groups].world
        if group is not None:
            seen = group.statistics()
            if seen.operations >= count and seen.in_flight:
                return
        gate.wait(0.01)


def meet() -> int:
    """Makes the group of all and waits until every rank has; returns the process."""
    begin()
    dist.barrier()
    return os.getpid()


def do_refused(what: str) -> list[str]:
    """Returns what an operation raises, and what the next one does."""
    return [refusal(lambda: do(what)), refusal(dist.barrier)]


def do_endlessly(what: str) -> list[str]:
    """Runs one operation after the other until one fails."""
    words = "nothing"
    while words == "nothing":
        words = refusal(lambda: do(what))
    return [words, refusal(dist.barrier)]


def go_on_without(lost: int) -> float:
    """Makes a new group of the living."""
    living = [r for r in range(3) if r != lost]
    group = dist.new_group(living)
    array = np.ones(LARGE)
    dist.all_reduce(array, group=group)
    return float(array.sum()) / LARGE


def forms_all() -> str:
    return refusal(lambda: dist.new_group([0, 1, 2]))


def is_forming() -> None:
    """Returns once this rank waits in new_group."""
    gate = threading.Event()
    while not current_agent().attachments[Groups].formations.waiting:
        gate.wait(0.01)


def aborts() -> list[str]:
    """Gives up what another rank waits in."""
    dist.world_group().abort(ValueError("no more data"))
    return [refusal(dist.barrier)]


def in_memory(size: int) -> None:
    """Runs each operation that ranks of one host do in shared memory."""
    array = np.arange(size, dtype=np.float64) + dist.get_rank()
    wanted = array.copy()
    dist.all_reduce(array)
    total = sum(np.arange(size, dtype=np.float64) + r for r in range(dist.get_world_size()))
    np.testing.assert_array_equal(array, total)
    dist.broadcast(wanted, 1)
    np.testing.assert_array_equal(wanted, np.arange(size) + 1.0)
    dist.reduce(array, 0)
    dist.barrier()


def counted_in_memory(size: int) -> tuple[int, int]:
    """Runs them twice; returns the messages and bytes that the second time took."""
    begin()
    in_memory(size)
    before = dist.world_group().statistics()
    in_memory(size)
    after = dist.world_group().statistics()
    return after.messages_sent - before.messages_sent, after.bytes_sent - before.bytes_sent


def counted_barrier() -> int:
    """Returns the messages that a barrier took here."""
    before = dist.world_group().statistics().messages_sent
    dist.barrier()
    return dist.world_group().statistics().messages_sent - before


def tells_that_it_waits() -> None:
    """Returns once the operation that another thread waits in has told the other ranks so."""
    group = dist.world_group()
    before = group.statistics().messages_sent
    while group.statistics().messages_sent == before or not group.statistics().in_flight:
        threading.Event().wait(0.01)


def in_a_group_for_once() -> None:
    """Makes the group of all, uses its memory and leaves it."""
    begin()
    in_memory(3)
    dist.destroy_process_group()


def stays_behind(late: int, limit: float) -> str:
    """Meets the other ranks twice in memory; one rank does not come to the second meeting."""
    r = dist.get_rank()

    async def run(link: Link) -> None:
        backend = await link.backend()
        await backend.barrier()
        if r == late:
            wait_for_end(dist.world_group())
        await backend.barrier()

    call = Call(signature=Signature(operation="test"), run=run)
    return refusal(lambda: dist.world_group().call(call, 60.0 if r == late else limit))


def mapped_memory() -> int:
    """Returns how many stretches of shared memory this process maps."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        return sum("memfd:telegrad" in line for line in maps)


def killed_in_memory() -> str:
    """Rank 1 is killed in the middle of an operation in memory; the others give all memory back."""
    r, arrays = begin(), [shared_empty(10 * LARGE) for _ in range(4)]
    dist.all_reduce(arrays[0])
    assert mapped_memory()
    # Rank 1 may have done all that it starts before it ends; of the last one it does nothing.
    works = [dist.all_reduce(each, async_op=True) for each in arrays[: 3 if r == 1 else 4]]
    if r == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    words = refusal(lambda: [work.wait() for work in works])
    dist.destroy_process_group()
    arrays.clear()
    works.clear()
    wait_until_gone("shared memory", lambda: ["a stretch"] * mapped_memory(), within=20.0)
    return words


def reduce_in_place(size: int, times: int) -> int:
    """Reduces an array in shared memory; returns the bytes sent after the first time."""
    r, n = dist.get_rank(), dist.get_world_size()
    array = shared_empty(size)
    sent = 0
    for k in range(times):
        array[...] = np.arange(size) * (r + k)
        dist.all_reduce(array)
        np.testing.assert_array_equal(array, np.arange(size) * sum(q + k for q in range(n)))
        sent = sent or dist.world_group().statistics().bytes_sent
    return dist.world_group().statistics().bytes_sent - sent


def waits_for_a_turn() -> str:
    """Starts an operation to which nobody comes, and one behind it that has less time."""
    begin()
    dist.all_reduce(np.ones(3), async_op=True)
    return refusal(lambda: dist.all_reduce(np.ones(3), timeout=0.5))
