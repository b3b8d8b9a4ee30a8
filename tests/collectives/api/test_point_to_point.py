"""Messages between two ranks: from any rank, in batches, and at the same time."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.collectives.algorithms import ring
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.remote_code import LARGE, refusal
from tests.conftest import Programs
from tests.patience import with_more_time

# sender, receiver, tag; all messages of tag 1 are large
Message = tuple[int, int, int]


def exchange(messages: list[Message], named: list[bool], posts_first: bool) -> None:
    """Sends messages at once, receives them from any rank or from a named one, checks the order."""
    r = remote_code.begin()
    mine = [(i, message) for i, message in enumerate(messages) if message[1] == r]
    sends = [(i, message) for i, message in enumerate(messages) if message[0] == r]

    def send_all() -> list[Any]:
        return [
            dist.isend(np.full(size_of(tag), float(i)), dst, tag=tag) for i, (_, dst, tag) in sends
        ]

    def receive_all() -> list[Any]:
        works = []
        for i, (src, _, tag) in mine:
            array = np.empty(size_of(tag))
            works.append((array, tag, dist.irecv(array, src if named[tag] else None, tag=tag), i))
        return works

    if posts_first:
        received, sent = receive_all(), send_all()
    else:
        sent, received = send_all(), receive_all()
    found = defaultdict(list)
    for array, tag, work, i in received:
        source = work.wait()
        assert (array == array[0]).all()
        assert messages[int(array[0])] == (source, r, tag)
        if named[tag]:
            assert array[0] == i
        found[tag].append(int(array[0]))
    for work in sent:
        work.wait()
    for tag, numbers in found.items():
        assert sorted(numbers) == [i for i, message in mine if message[2] == tag]
        if not posts_first:  # receives from any rank take what has come; a sender keeps its order
            for src in range(dist.get_world_size()):
                of_source = [i for i in numbers if messages[i][0] == src]
                assert of_source == sorted(of_source)
    dist.barrier()


def size_of(tag: int) -> int:
    return LARGE if tag else 3


@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3])
def test_messages_from_any_rank(n: int) -> None:
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    message = st.tuples(st.sampled_from(pairs), st.sampled_from([0, 0, 0, 1]))
    with Cluster(n) as cluster:

        @settings(max_examples=30)
        @given(
            st.lists(message.map(lambda m: (*m[0], m[1])), max_size=12),
            st.lists(st.booleans(), min_size=2, max_size=2),
            st.booleans(),
        )
        def check(messages: list[Message], named: list[bool], posts_first: bool) -> None:
            cluster.run(exchange, messages, named, posts_first)

        check()


SHAPES = [(), (0,), (3, 0, 2), (1, 1), (LARGE,)]


def passes_shapes(posted: bool) -> None:
    """Sends read-only arrays of all shapes to the right and receives those from the left."""
    r, n = remote_code.begin(), dist.get_world_size()
    for shape in SHAPES:
        sent, received = np.full(shape, r + 1.0), np.zeros(shape)
        sent.flags.writeable = False
        if posted:
            coming, going = dist.irecv(received, (r - 1) % n), dist.isend(sent, (r + 1) % n)
            going.wait()
            assert coming.wait() == (r - 1) % n
        else:
            received = remote_code.pass_round(sent, r, n)
        assert received.shape == shape
        assert (received == (r - 1) % n + 1.0).all()
        assert (sent == r + 1.0).all()
        assert not sent.flags.writeable


@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.long
def test_empty_0d_and_read_only_arrays(posted: bool, processes: bool) -> None:
    with Cluster(3, processes=processes) as cluster:
        cluster.run(passes_shapes, posted)


def receives_read_only() -> str:
    """A refused receive takes no message: the next receive gets it."""
    r = remote_code.begin()
    if r == 0:
        dist.send(np.ones(3), 1)
        return ""
    array = np.zeros(3)
    array.flags.writeable = False
    said = refusal(lambda: dist.recv(array, 0))
    assert (array == 0.0).all()
    array.flags.writeable = True
    dist.recv(array, 0)
    assert (array == 1.0).all()
    return said


def test_a_receive_into_a_read_only_array_is_refused() -> None:
    with Cluster(2) as cluster:
        said = cluster.run(receives_read_only)[1]
    assert said.startswith("ValueError: "), said
    assert "read-only" in said


def takes_from_any(kind: str) -> list[str]:
    """Rank 0 receives from any rank; rank 1 sends something else, or leaves."""
    r = remote_code.begin(timeout=20.0)
    if r == 0:
        array = np.zeros(3)
        said = [refusal(lambda: dist.recv(array)) for _ in range(2)]
        return [*said, str(array)]
    if kind == "dtype" and r == 1:
        dist.send(np.zeros(3, np.float32), 0)
    elif kind == "large" and r == 1:
        return [refusal(lambda: dist.send(np.zeros(LARGE), 0))]
    elif kind == "leave":
        if r == 1:
            dist.send(np.ones(3), 0)
        dist.destroy_process_group()
        return []
    return [refusal(dist.barrier)]


# -- long messages -----------------------------------------------------------------------------


def send_in_segments(sizes: list[int], any_rank: bool) -> int:
    """Sends arrays one after the other; returns the number of this rank's messages."""
    r, before = remote_code.begin(), dist.world_group().statistics().messages_sent
    for i, size in enumerate(sizes):
        if r == 0:
            array = np.arange(size) + i
            dist.send(array, 1)
            array[:] = -1  # it may be changed
        else:
            array = np.zeros(size, np.int64)
            assert dist.recv(array, None if any_rank else 0) == 0
            np.testing.assert_array_equal(array, np.arange(size) + i)
    return dist.world_group().statistics().messages_sent - before


@pytest.mark.parametrize("any_rank", [False, True])
def test_a_receiver_asks_for_each_segment_but_the_first_two(
    any_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "SEGMENT_BYTES", 64)
    sizes = [0, 1, 8, 9, 16, 17, 100, 333]
    counts = [ring.segments(8 * size) for size in sizes]
    with Cluster(2) as cluster:
        sent, asked = cluster.run(send_in_segments, sizes, any_rank)
    assert sent == sum(counts)
    assert asked == sum(max(m - ring.AT_ONCE, 0) for m in counts)


@pytest.mark.parametrize("kind", ["dtype", "large"])
def test_a_message_that_does_not_fit_a_receive_from_any_rank(kind: str) -> None:
    with Cluster(3) as cluster:
        first, second, third = cluster.run(takes_from_any, kind)
    for said in (first[0], *second, *third):
        assert said.startswith("CollectiveMismatchError: "), said
        assert "rank 0 ('worker0') called recv(dtype=float64, shape=(3,))" in said
        assert "rank 1 ('worker1') called send(" in said


def test_a_receive_from_any_rank_after_all_have_left() -> None:
    with Cluster(3) as cluster:
        first, _, _ = cluster.run(takes_from_any, "leave")
    assert first[0] == "nothing"
    assert first[1].startswith("CollectiveMismatchError: recv(")
    assert "all other ranks have left the group" in first[1]
    assert first[2] == "[1. 1. 1.]"


def waits_for_any(limit: float) -> list[str]:
    """Rank 0 waits for a message that nobody sends; it gets the next one, and the group goes on."""
    r = remote_code.begin()
    if r == 0:
        said = [refusal(lambda: dist.recv(np.zeros(3), tag=5, timeout=limit))]
        dist.barrier()
        array = np.zeros(3)
        return [*said, str(dist.recv(array, tag=5)), str(array)]
    dist.barrier()
    dist.send(np.ones(3), 0, tag=5)
    return []


def test_a_receive_from_any_rank_that_nobody_sends_to() -> None:
    with Cluster(2) as cluster:
        (said, source, array), _ = cluster.run(waits_for_any, 0.3)
    assert said.startswith("CallTimeoutError: recv(dtype=float64, shape=(3,)), number 1 of group")
    assert "took longer than 0.3 s: no rank has sent a message with tag 5" in said
    assert (source, array) == ("1", "[1. 1. 1.]")


def waits_for_one(kind: str, limit: float) -> list[str]:
    """Ranks 0 and 1 have nothing for each other; rank 2 has something for both."""
    r = remote_code.begin()
    found = np.zeros(3)
    if r == 0 and kind == "send":
        said = [refusal(lambda: dist.send(np.ones(LARGE), 1, timeout=limit))]
    elif r == 0 and kind == "objects":
        said = [refusal(lambda: dist.recv_object_list([None], 1, timeout=limit))]
    elif r == 0:
        said = [refusal(lambda: dist.recv(found, 1, tag=3, timeout=limit))]
    elif r == 1:
        said = [refusal(lambda: dist.recv(found, 0, tag=7))]
    else:
        said = []
    dist.barrier()
    if r < 2:
        said += [refusal(lambda: dist.send(found, 1 - r)), refusal(lambda: dist.recv(found, 1 - r))]
        dist.send(found + r, 2)
        dist.recv(found, 2)
    else:
        for q in (0, 1):
            dist.recv(found, q)
            assert (found == q).all()
            dist.send(np.full(3, 5.0), q)
    dist.all_reduce(found)
    said.append(str(found))
    pair = dist.new_group([0, 1])
    if r < 2:
        dist.send(found, 1 - r, group=pair) if r else dist.recv(found, 1, group=pair)
    return said


@pytest.mark.parametrize("kind", ["recv", "send", "objects"])
def test_the_deadline_of_a_message_ends_the_messages_of_its_pair_alone(kind: str) -> None:
    with Cluster(3) as cluster:
        first, second, third = cluster.run(waits_for_one, kind, 0.3)
    for r, said in enumerate((first, second)):
        waited, sent, received, total = said
        verb = {"recv": "recv(", "send": "send(", "objects": "recv_object_list("}[kind]
        assert waited.startswith(f"CallTimeoutError: {verb}"), waited
        assert "on rank 0 ('worker0') took longer than 0.3 s" in waited
        assert "not entered by rank 1 ('worker1')" in waited
        assert f"with tag {3 if kind == 'recv' else 0}" in waited
        for later in (sent, received):
            assert later.startswith("CallTimeoutError: "), later
            assert f"sends and receives with rank {1 - r} ('worker{1 - r}') are over" in later
            assert "make a new group with new_group()" in later
        assert total == third[0] == "[11. 11. 11.]"


INTERRUPTED = """
import signal
import threading
import numpy as np
from telegrad import collectives as dist, rpc

def interrupt(*_):
    raise KeyboardInterrupt

def set_timer():
    while not group.statistics().in_flight:  # before it has entered, nobody would hear of it
        threading.Event().wait(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0.2)

group = dist.init_process_group()
if group.rank == 0:
    signal.signal(signal.SIGALRM, interrupt)
    threading.Thread(target=set_timer).start()
try:
    dist.recv(np.zeros(3), 1 - group.rank, tag=group.rank)
except BaseException as error:
    print(type(error).__name__, str(error).partition("\\n")[0])
dist.barrier()
print("goes on")
rpc.shutdown()
"""


def test_an_interrupt_ends_the_messages_of_its_pair_alone(programs: Programs) -> None:
    outputs = [each.wait() for each in programs.ranks(programs.script(INTERRUPTED), 2)]
    assert outputs[0] == "KeyboardInterrupt \ngoes on\n"
    assert outputs[1].startswith("RemoteError recv(dtype=float64, shape=(3,)), number 1 of group")
    assert "on rank 0 ('worker0') was interrupted (KeyboardInterrupt)" in outputs[1]
    assert outputs[1].endswith("goes on\n")


def test_a_rank_is_lost_while_another_receives_from_any() -> None:
    with ThreadPoolExecutor(1) as pool, Cluster(3) as cluster:
        cluster.run(remote_code.meet)
        waiting = pool.submit(cluster.call, 0, takes_from_any, "")
        cluster.call(0, remote_code.entered, 1)
        cluster.kill(1)
        assert waiting.result()[0].startswith("WorkerLostError: worker 'worker1'")


def batches() -> list[float]:
    """Each rank sends to both neighbours and receives from both, in one batch."""
    r, n = remote_code.begin(), dist.get_world_size()
    own = np.full(LARGE, float(r))
    left, right = np.empty(LARGE), np.empty(LARGE)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, own, (r + 1) % n, tag=1),
            dist.P2POp(dist.irecv, right, (r + 1) % n, tag=2),
            dist.P2POp(dist.isend, own, (r - 1) % n, tag=2),
            dist.P2POp(dist.irecv, left, (r - 1) % n, tag=1),
        ]
    )
    values = [work.wait() for work in works]
    assert values == [None, (r + 1) % n, None, (r - 1) % n]
    assert dist.batch_isend_irecv([]) == []
    verbs: Any = dist
    with pytest.raises(ValueError, match="isend or irecv"):
        verbs.P2POp(dist.send, own, 0)
    with pytest.raises(TypeError, match="list of P2POp"):
        verbs.batch_isend_irecv([own])
    with pytest.raises(ValueError, match="is this one"):
        dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, own, (r + 1) % n), dist.P2POp(dist.irecv, left, r)]
        )
    with pytest.raises(TypeError, match="dst must be a rank"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, own)])
    dist.barrier(async_op=True).wait()
    assert dist.world_group().statistics().in_flight == 0, "of a wrong batch nothing was sent"
    return [left[-1], right[-1]]


def test_batches() -> None:
    with Cluster(3) as cluster:
        assert cluster.run(batches) == [[2.0, 1.0], [0.0, 2.0], [1.0, 0.0]]


def misses_a_barrier(limit: float, wait_all_ranks: bool) -> str:
    r = remote_code.begin()
    if r:
        return refusal(lambda: remote_code.wait_for_end(dist.world_group()))
    return refusal(lambda: dist.monitored_barrier(None, limit, wait_all_ranks))


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_a_monitored_barrier_names_who_is_missing(wait_all_ranks: bool) -> None:
    with_more_time(lambda limit: check_monitored(limit, wait_all_ranks), 0.4, 4.0)


def check_monitored(limit: float, wait_all_ranks: bool) -> None:
    with Cluster(3) as cluster:
        said = cluster.run(misses_a_barrier, limit, wait_all_ranks)[0]
    assert said.startswith("CallTimeoutError: monitored_barrier()"), said
    assert "rank 1 ('worker1')" in said
    assert ("rank 2 ('worker2')" in said) is wait_all_ranks
