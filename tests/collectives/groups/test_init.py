"""`init_process_group` and `destroy_process_group`: before and after `init_rpc`, alone, again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.errors import AlreadyInitializedError, InvalidUseError, NotInitializedError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.conftest import unused_port

pytestmark = pytest.mark.usefixtures("alone")


def test_without_rpc() -> None:
    group = dist.init_process_group(name="solo")
    assert rpc.get_worker_info().name == "solo"
    assert (group.name, group.rank, group.size, group.ranks) == ("world", 0, 1, (0,))
    assert dist.world_group() is group
    array = np.ones(3)
    dist.all_reduce(array)
    dist.destroy_process_group()
    assert not rpc.is_initialized()
    with pytest.raises(NotInitializedError):
        dist.get_rank()
    dist.destroy_process_group()
    with pytest.raises(NotInitializedError, match="was destroyed|has left|was shut down"):
        dist.barrier(group)


def test_destroy_on_a_loop_is_refused_before_anything_is_left() -> None:
    dist.init_process_group()
    words = rpc.rpc_sync(0, remote_code.destroys_on_the_user_loop)
    assert words.startswith("BlockingCallError: destroy_process_group() would block a loop"), words
    dist.barrier()
    dist.destroy_process_group()


def test_after_rpc() -> None:
    agent = rpc.init_rpc("me")
    with pytest.raises(NotInitializedError, match=r"init_process_group\(\) first"):
        dist.barrier()
    dist.init_process_group(name="me", rank=0, world_size=1)
    assert dist.get_world_size() == 1
    dist.destroy_process_group()
    dist.destroy_process_group()
    assert rpc.is_initialized(), "init_rpc was called, so it is rpc.shutdown() that ends it"
    assert not agent.ended
    dist.init_process_group()
    dist.barrier()
    rpc.shutdown()
    dist.destroy_process_group()


def test_before_rpc() -> None:
    dist.init_process_group(name="me", timeout=5.0)
    agent = rpc.init_rpc("me", rank=0, world_size=1)
    assert agent.name == "me"
    with pytest.raises(AlreadyInitializedError, match="'me' already runs"):
        rpc.init_rpc("me")
    dist.destroy_process_group()
    assert rpc.get_worker_info().name == "me"
    rpc.shutdown()


def test_twice() -> None:
    dist.init_process_group()
    with pytest.raises(AlreadyInitializedError, match=r"destroy_process_group\(\) before"):
        dist.init_process_group()


def test_two_doors_that_say_different_things() -> None:
    dist.init_process_group()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "trainer"}, r"write init_process_group\(name='trainer'\), or leave name out"),
        ({"rank": 1}, "rank=0"),
        ({"world_size": 4}, "world_size=1"),
        ({"options": rpc.RpcOptions(timeout=3.0)}, "options"),
    ]
    for arguments, words in wrong:
        with pytest.raises(AlreadyInitializedError, match=words):
            rpc.init_rpc(**arguments)
    rpc.init_rpc(options=rpc.RpcOptions())
    dist.destroy_process_group()
    with pytest.raises(AlreadyInitializedError, match=r"write init_rpc\(name='other'\)"):
        dist.init_process_group(name="other")
    dist.init_process_group(rank=0, timeout=None)
    assert dist.world_group().timeout == 1800.0


def test_the_world_size_is_the_same_when_somebody_joined_on_top() -> None:
    address = f"tcp://127.0.0.1:{unused_port()}"
    agent = rpc.init_rpc("me", rank=0, world_size=1, init_method=address)
    late = rpc.Agent("late", init_method=address + "?late=1")
    current_agent().attachments[JoinedJob].store.num_keys()  # answered behind the news of `late`
    assert agent.world_size == 2
    with pytest.raises(AlreadyInitializedError, match="world_size=1"):
        dist.init_process_group(world_size=3)
    dist.init_process_group(world_size=1)
    late.shutdown(graceful=False)


def test_wrong_arguments_leave_nothing_behind() -> None:
    with pytest.raises(ValueError, match="above 0"):
        dist.init_process_group(timeout=0)
    with pytest.raises(ValueError, match="init_method"):
        dist.init_process_group(rank=1, world_size=2)
    assert not rpc.is_initialized()


def other_members() -> str:
    """The ambient agent is the cluster's: many may live in one process."""
    dist.init_process_group(timeout=7.0)
    world = dist.world_group()
    group = dist.new_group([1, 0], timeout=3.0)
    assert (world.timeout, group.timeout) == (7.0, 3.0)
    assert dist.new_group([0, 1]).timeout == 7.0
    dist.destroy_process_group()
    try:
        dist.barrier(group)
    except NotInitializedError as error:
        return str(error)
    return ""


def test_many_agents_in_one_process() -> None:
    with Cluster(2) as cluster:
        for words in cluster.run(other_members):
            assert "barrier() on group '[1, 0]' on rank" in words
            assert "is refused, since the group is over" in words
        assert not rpc.is_initialized()


@pytest.mark.parametrize(
    ("backend", "line"),
    [
        ("gloo", 'write backend="host", or leave it out'),
        ("MPI", 'write backend="host", or leave it out'),
        ("cpu:gloo,cuda:nccl", 'write backend="nccl"'),
    ],
)
def test_backends_of_torch_are_refused_with_the_line(backend: str, line: str) -> None:
    with pytest.raises(InvalidUseError, match=line):
        dist.init_process_group(backend)
    with pytest.raises(InvalidUseError, match=line):
        dist.init_process_group(backend=backend)


def init_by_position() -> int:
    return dist.init_process_group("host").size


def test_the_backend_may_be_the_first_argument() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(init_by_position) == [2, 2]
