"""`init_rpc` and `shutdown` of a process: one agent, tried again after a failure, seen everywhere."""

from __future__ import annotations

import os
import socket

import pytest

from telegrad import rpc
from telegrad.errors import (
    NotInitializedError,
    RendezvousTimeoutError,
)
from tests.conftest import TOKEN, Programs, unused_port
from tests.rpc import remote_code

pytestmark = pytest.mark.usefixtures("alone")


def test_a_job_of_one() -> None:
    agent = rpc.init_rpc()
    assert agent.name == "worker0"
    assert (agent.rank, agent.world_size) == (0, 1)
    assert rpc.is_initialized()
    assert rpc.rpc_sync("worker0", remote_code.add, (1, 2)) == 3
    rpc.shutdown()
    assert not rpc.is_initialized()
    rpc.shutdown()


def test_an_empty_name_is_none() -> None:
    with pytest.raises(ValueError, match="worker name is empty"):
        rpc.init_rpc("")
    with pytest.raises(ValueError, match="worker name is empty"):
        rpc.Agent("", init_method="tcp://127.0.0.1:1?late=1")


def test_in_every_state_of_one_worker() -> None:
    """Never initialised, twice, and inside a block that ends it again."""
    rpc.shutdown()
    rpc.shutdown(graceful=False)
    for name in ("one", "two"):
        agent = rpc.init_rpc(name)
        assert rpc.rpc_sync(name, remote_code.who) == name
        rpc.shutdown()
        rpc.shutdown()
        agent.shutdown()
        rpc.shutdown(graceful=False)
    with rpc.init_rpc():
        rpc.shutdown()
    with pytest.raises(NotInitializedError):
        rpc.get_worker_info()


def test_again_after_a_failure() -> None:
    port = unused_port()
    options = rpc.RpcOptions(init_timeout=0.1)
    address = f"tcp://127.0.0.1:{port}"
    for _ in range(2):
        with pytest.raises(RendezvousTimeoutError) as info:
            rpc.init_rpc(rank=0, world_size=2, init_method=address, options=options)
        assert any("1" in missing for missing in info.value.missing)
        assert not rpc.is_initialized()
        with pytest.raises(NotInitializedError):
            rpc.get_worker_info()
        rpc.shutdown()
    with rpc.init_rpc(rank=0, world_size=1, init_method=address) as agent:
        assert agent.name == "worker0"


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            rpc.init_rpc(rank=0, world_size=1, init_method=f"tcp://127.0.0.1:{port}")
        with pytest.raises(OSError, match=str(port)):
            rpc.init_rpc(options=rpc.RpcOptions(port=port))
    assert not rpc.is_initialized()


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="RpcOptions"):
        rpc.init_rpc(options={"timeout": 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="init_method"):
        rpc.init_rpc(rank=1, world_size=2)
    with pytest.raises(ValueError, match="name"):
        rpc.init_rpc("no blanks")
    assert not rpc.is_initialized()


def test_without_a_token_it_warns() -> None:
    with pytest.warns(UserWarning, match="insecure=True"):
        rpc.init_rpc(options=rpc.RpcOptions(insecure=True))
    assert rpc.rpc_sync(0, remote_code.who) == "worker0"


# A process that forks for reasons of its own, and whose children end as programs do.
FORKS_OFTEN = """
import multiprocessing, os, sys, time
from telegrad import rpc

def sleep(i):
    time.sleep(0.05)

if __name__ == "__main__":
    rpc.init_rpc()
    forked = []
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            time.sleep(0.05)
            sys.exit(0)
        forked.append(child)
    children = [multiprocessing.get_context("fork").Process(target=sleep, args=(i,)) for i in range(CHILDREN)]
    for process in children:
        process.start()
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in forked]
    for process in children:
        process.join()
        ends.append(process.exitcode)
    print("ends:", *ends)
    rpc.shutdown()
"""


@pytest.mark.long
@pytest.mark.parametrize("children", [4, pytest.param(10, marks=pytest.mark.long)])
def test_forked_children_that_use_nothing_end_as_they_should(
    programs: Programs, children: int
) -> None:
    """gRPC's fork handlers crashed one in five; with uvloop all died that ran exit hooks."""
    env = {"TELEGRAD_TOKEN": TOKEN}
    if "PYTHONPATH" in os.environ:  # where make test-uvloop says that uvloop is
        env["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ["PYTHONPATH"]])
    script = programs.script(FORKS_OFTEN.replace("CHILDREN", str(children)))
    output = programs.run(["python", script], env=env)
    assert " ".join(["ends:", *2 * children * ["0"]]) in output.splitlines()
