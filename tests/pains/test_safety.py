"""Pains of users: strangers, pickled code, forked children, functions that do not travel."""

from __future__ import annotations

import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import telegrad
from telegrad import launch, rpc
from telegrad.errors import AuthenticationError, CallRefusedError, EncodeError
from telegrad.testing import Cluster
from tests.conftest import unused_port
from tests.faults.processes import listeners
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


# A statement that imports modules, or names from one; `import a, b` is written on two lines.
IMPORT = re.compile(r"^\s*(?:from|import) +(\w+)", re.MULTILINE)


def test_pain_08_pickle_runs_what_it_is_sent() -> None:
    """Nothing here unpickles, and functions that would are not called for others."""
    imports = {
        name
        for path in Path(telegrad.__file__).parent.rglob("*.py")
        for name in IMPORT.findall(path.read_text())
    }
    assert {"msgpack", "numpy"} <= imports
    assert not imports & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    with Cluster(2) as cluster:
        with pytest.raises(EncodeError, match="Payload"):
            cluster.call(0, rpc.rpc_sync, "worker1", echo, (Payload(),))
        dangerous: list[Any] = [pickle.loads, eval, exec]
        for func in dangerous:
            with pytest.raises(CallRefusedError):
                cluster.call(0, rpc.rpc_sync, "worker1", func, (pickle.dumps(Payload()),))
    assert ran == []
