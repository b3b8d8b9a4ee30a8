"""Pains of users: strangers, pickled code, forked children, functions that do not travel."""

from __future__ import annotations

import ast
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import telegrad
from telegrad import launch, rpc
from telegrad.errors import AuthenticationError, CallRefusedError, EncodeError
from telegrad.testing import Cluster
from tests.conftest import Programs, unused_port
from tests.pains.listeners import listeners
from tests.pains.remote_code import TOKEN, echo, process_id

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.mark.usefixtures("alone")
def test_pain_07_no_authentication_and_every_interface() -> None:
    """All listen on loopback alone, and who does not hold the token does not get in."""
    with rpc.init_rpc(), launch.LocalWorkers(1) as workers:
        worker = rpc.rpc_sync(workers.names[0], process_id)
        assert worker != os.getpid()
        for pid in (worker, os.getpid()):
            assert {each.host for each in listeners(pid)} == {"127.0.0.1"}
    address = f"tcp://127.0.0.1:{unused_port()}"

    def join(rank: int, token: str) -> rpc.Agent:
        options = rpc.RpcOptions(token=token, init_timeout=20.0)
        name = f"worker{rank}"
        return rpc.Agent(name, rank=rank, world_size=2, init_method=address, options=options)

    with ThreadPoolExecutor(1) as pool:
        hosting = pool.submit(join, 0, TOKEN)
        with pytest.raises(AuthenticationError):
            join(1, "a token of somebody else's")
        assert not hosting.done()
        for agent in (join(1, TOKEN), hosting.result()):
            agent.shutdown(graceful=False)


ran: list[str] = []


class Payload:
    """What runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return ran.append, ("ran",)


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports, or imports from."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []


def test_pain_08_pickle_runs_what_it_is_sent() -> None:
    """Nothing here unpickles, and functions that would are not called for others."""
    imports = {
        module.partition(".")[0]
        for path in Path(telegrad.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in imported(node)
    }
    assert not imports & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    with Cluster(2) as cluster:
        with pytest.raises(EncodeError, match="Payload"):
            cluster.call(0, rpc.rpc_sync, "worker1", echo, (Payload(),))
        for func in (pickle.loads, eval, exec):
            with pytest.raises(CallRefusedError):
                cluster.call(0, rpc.rpc_sync, "worker1", func, (pickle.dumps(Payload()),))
    assert ran == []


FORKS = """
import os
from telegrad import rpc
from telegrad.errors import AgentForkedError

agent = rpc.init_rpc()
rref = rpc.RRef(3)
if os.fork() == 0:
    for use in (lambda: rpc.rpc_sync(0, max, (1, 2)), lambda: rpc.rpc_async(0, max, (1, 2))):
        try:
            use()
        except AgentForkedError as error:
            assert "spawn" in str(error)
            print("told", flush=True)
    os._exit(0)
os.wait()
print(rref.to_here())
rpc.shutdown()
"""


def test_pain_26_a_forked_child_hangs(programs: Programs) -> None:
    output = programs.run(["python", programs.script(FORKS)], env={"TELEGRAD_TOKEN": TOKEN})
    assert output.splitlines() == ["told", "told", "3"]


OF_THE_SCRIPT = """
from telegrad import launch, rpc

def double(x):
    return 2 * x

class Model:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

if __name__ == "__main__":
    with rpc.init_rpc("me"), launch.LocalWorkers(1) as workers:
        (name,) = workers.names
        print(rpc.rpc_sync(name, double, (3,)), rpc.remote(name, Model, (5,)).rpc_sync()(3))
        for func in (lambda x: x, Model(2).__call__):
            try:
                rpc.rpc_sync(name, func, (3,))
            except TypeError as error:
                print(error)
"""


def test_pain_32_functions_of_the_script_and_lambdas(programs: Programs) -> None:
    """Those of the script travel by name, those without a name are refused with what to write."""
    script = programs.script(OF_THE_SCRIPT)
    output = programs.run(["python", script], env={"TELEGRAD_TOKEN": TOKEN})
    first, refused, method = output.splitlines()
    assert first == "6 15"
    assert "lambda" in refused
    assert "rref.rpc_sync()" in method
