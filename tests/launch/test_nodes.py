"""The launchers of several hosts: ranks by node, and the log that all of them read."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.launch.nodes import DONE, FAILED, GONE, Event, Nodes, Share, share_ranks
from telegrad.launch.policy import GRACE, Policy
from telegrad.rendezvous import MemoryStore

LIMIT = 20.0


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    yield made
    made.close()


def say_nothing(line: str) -> None:
    return None


def test_ranks_follow_by_node_whatever_each_starts(store: MemoryStore) -> None:
    workers = [2, 3, 1]
    with ThreadPoolExecutor(3) as pool:
        shares = pool.map(
            lambda node: share_ranks(store, node, 3, workers[node], say_nothing), range(3)
        )
        assert list(shares) == [Share(0, 6), Share(2, 6), Share(5, 6)]


def test_two_nodes_of_one_rank(store: MemoryStore) -> None:
    share_ranks(store, 0, 1, 1, say_nothing)
    with pytest.raises(
        RendezvousError, match="node rank 0 is taken by .* a --node-rank of its own"
    ):
        share_ranks(store, 0, 1, 1, say_nothing)


def test_two_nodes_that_disagree_on_how_many_there_are(store: MemoryStore) -> None:
    with pytest.raises(RendezvousTimeoutError, match="node 1, node 2 did not come"):
        share_ranks(store, 0, 3, 1, say_nothing, timeout=0.01)
    with pytest.raises(
        RendezvousError, match=r"node 0 \(.*\) was started with --nnodes 3, this one"
    ):
        share_ranks(store, 1, 2, 1, say_nothing)


def heard(nodes: Nodes, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        ready, _, _ = select.select([nodes.wake], [], [], LIMIT)
        assert ready, events
        events += nodes.take()
    return events


def test_all_read_the_same_log(store: MemoryStore) -> None:
    first, second = Nodes(store, 0, 2), Nodes(store, 1, 2)
    failed = Event(FAILED, 1, rank=3, code=-9, text=("Traceback", "ValueError: ü"))
    second.tell(failed)
    assert heard(first, 1) == heard(second, 1) == [failed]
    first.tell(Event(FAILED, 0, rank=0, code=1))
    first.tell(Event(DONE, 0))
    second.tell(Event(DONE, 1))
    assert {event.kind for event in heard(first, 3)} == {FAILED, DONE}
    heard(second, 3)
    for nodes in (first, second):
        assert nodes.first_failure == failed
        assert nodes.all_done
        nodes.close()


@pytest.fixture
def nodes(store: MemoryStore) -> Iterator[Nodes]:
    """Those of node 0 of two; at the end the workers of both have ended."""
    made = Nodes(store, 0, 2)
    yield made
    for node in range(2):
        made.tell(Event(DONE, node))
    made.close()


def test_the_failure_that_began_first_counts_whichever_was_told_first(nodes: Nodes) -> None:
    nodes.tell(Event(FAILED, 0, rank=0, code=1, age=LIMIT))
    nodes.tell(Event(FAILED, 1, rank=1, code=1, age=2 * LIMIT))
    heard(nodes, 2)
    assert nodes.first_failure is not None
    assert nodes.first_failure.rank == 1


def test_who_failed_since_another_was_lost_is_not_the_one_to_name(nodes: Nodes) -> None:
    lost = ("Traceback (most recent call last):", "telegrad.errors.OwnerLostError: worker 'w1'")
    nodes.tell(Event(FAILED, 0, rank=0, code=1, text=lost, age=LIMIT))
    nodes.tell(Event(FAILED, 1, rank=1, code=-9))
    heard(nodes, 2)
    assert nodes.first_failure is not None
    assert nodes.first_failure.rank == 1


def test_the_loss_of_a_node_counts_as_its_end(nodes: Nodes) -> None:
    nodes.tell(Event(GONE, 1, text=("silent for 10 s",)))
    (gone,) = heard(nodes, 1)
    assert gone.words == "node 1 is lost (silent for 10 s)"
    assert nodes.first_failure == gone
    nodes.tell(Event(DONE, 0))
    heard(nodes, 1)
    assert nodes.all_done


def test_who_is_done_may_go(nodes: Nodes) -> None:
    for event in (Event(DONE, 1), Event(GONE, 1), Event(DONE, 0)):
        nodes.tell(event)
    assert [event.kind for event in heard(nodes, 2)] == [DONE, DONE]
    assert nodes.first_failure is None


def test_without_the_log_everything_is_over(store: MemoryStore) -> None:
    nodes = Nodes(store, 1, 3)
    store.close()
    (gone,) = heard(nodes, 1)
    assert (gone.kind, gone.node) == (GONE, 0)
    assert nodes.all_done
    nodes.close()


FORGED = [
    b'{"kind": "failed", "node": "0\\n[0] fine", "text": []}',
    b'{"kind": "failed", "node": 0, "rank": "x", "text": []}',
    b'{"kind": "failed", "node": 0, "code": 1.5, "text": []}',
    b'{"kind": "failed", "node": 0, "text": 1}',
]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"kind": "done"}', b'{"text": [], "x": 1}', *FORGED]
)
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an event of a launcher"):
        Event.read(data)


def test_a_failure_elsewhere_ends_the_workers_here() -> None:
    policy = Policy({4, 5})
    assert policy.failed_elsewhere(now=1.0)
    assert not policy.failed_elsewhere(now=2.0)
    assert policy.tick(1.0 + GRACE) == [signal.SIGTERM]
    assert not policy.exited(4, -signal.SIGTERM, now=7.0, place=0)
    assert policy.tick(1.0 + 2 * GRACE) == [signal.SIGKILL]
    assert policy.culprit is None


def test_a_failure_elsewhere_after_ctrl_c_changes_nothing() -> None:
    policy = Policy({0})
    policy.signalled(signal.SIGINT, now=1.0)
    assert not policy.failed_elsewhere(now=2.0)
    assert policy.next_tick is None
