"""Calls that cannot work, between real processes: each has its error, and the job serves on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad import rpc
from telegrad.errors import (
    AlreadyInitializedError,
    BlockingCallError,
    CallRefusedError,
    CallTimeoutError,
    EncodeError,
    FunctionNotFoundError,
    RemoteError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.testing import Cluster, no_leaked_references
from tests.faults import bad_calls, remote_code
from tests.faults.outcome import SOON

MEMBERS = ("'worker0' (rank 0)", "'worker1' (rank 1)")
TUPLE = ("args must be a tuple or list", "write args=(x,)")
TIMEOUT = ("timeout must be above 0 seconds", "write timeout=math.inf")
REGISTER = ("rpc.register_type(Unsendable, encode=..., decode=...)", "make it a dataclass")
THERE = "remote traceback, from worker 'worker1' (process "
HAVE = "worker 'worker1' does not let the caller 'worker0' have"
ALLOW = ("write a function of your own", "RpcOptions(callables=[")

EXPECTED: dict[str, tuple[type[BaseException], tuple[str, ...]]] = {
    "unknown name": (UnknownWorkerError, ("no worker 'ps'", *MEMBERS)),
    "unknown rank": (UnknownWorkerError, ("no worker 7", *MEMBERS)),
    "an older incarnation": (
        WorkerLostError,
        ("'worker1' (incarnation 0) is lost", "has taken its place"),
    ),
    "another incarnation": (UnknownWorkerError, ("no worker WorkerInfo(name='worker1'", *MEMBERS)),
    "to=True": (TypeError, ("to must be a worker's name, rank or WorkerInfo, not True",)),
    "to=None": (TypeError, ("to must be a worker's name, rank or WorkerInfo, not None",)),
    "args=(x)": (TypeError, ("not int", *TUPLE)),
    "args=(array)": (TypeError, ("not ndarray", *TUPLE)),
    "args='text'": (TypeError, ("not str", *TUPLE)),
    "timeout=0": (ValueError, ("got 0", *TIMEOUT)),
    "timeout=-1": (ValueError, ("got -1", *TIMEOUT)),
    "timeout=nan": (ValueError, ("got nan", *TIMEOUT)),
    "timeout=True": (TypeError, ("not True (bool)", "math.inf")),
    "no function": (TypeError, ("func must be callable", "'who'")),
    "lambda": (EncodeError, ("is a lambda", "write a def at the top of a module")),
    "closure": (EncodeError, ("inner is defined inside a function", "top of its module")),
    "partial": (EncodeError, ("functools.partial", "send the function itself")),
    "bound method": (EncodeError, ("Model.forward is bound", "rref.rpc_sync().forward(...)")),
    "lambda as an argument": (EncodeError, ("args[0][0] cannot travel", "is a lambda")),
    "module not there": (
        FunctionNotFoundError,
        ("'worker1' has not imported 'only_here'", "'f'", "import only_here in its script"),
    ),
    "function not there": (
        FunctionNotFoundError,
        ("'worker1' has no 'newer'", "'tests.faults.remote_code'", "run the same version?"),
    ),
    "os.system": (CallRefusedError, (f"{HAVE} 'posix:system'", *ALLOW)),
    "pickle.loads": (CallRefusedError, (f"{HAVE} 'pickle:loads'", *ALLOW)),
    "private": (EncodeError, ("_private is private", "rename it")),
    "rpc.shutdown": (CallRefusedError, (f"{HAVE} 'telegrad.rpc.verbs.api:shutdown'", *ALLOW)),
    "unsendable": (EncodeError, ("args[1]['lr'][0] cannot travel", *REGISTER)),
    "unsendable by name": (EncodeError, ("kwargs['value'] cannot travel", *REGISTER)),
    "lock": (EncodeError, ("args[0] cannot travel", "_thread.lock", "rpc.register_type(lock")),
    "generator": (EncodeError, ("args[0] cannot travel", "generator", "send a list of its items")),
    "objects": (EncodeError, ("args[0] cannot travel", "dtype object", "array.tolist()")),
    "contains itself": (EncodeError, ("args[0][0] cannot travel", "contains itself", "RRef")),
    "Module": (
        EncodeError,
        ("args[0]['model'] cannot travel", "rpc.RRef(model)", "rpc.remote(to,"),
    ),
    "unsendable result": (
        EncodeError,
        ("the value of", "gives_something_unsendable", "value[0] cannot travel", *REGISTER, THERE),
    ),
    "exception": (bad_calls.CustomError, ("no such thing", THERE, "bad_calls.py", "in fails")),
    "exception unknown here": (RemoteError, ("NobodyHasItError: only here", THERE)),
    "sys.exit": (RemoteError, ("SystemExit: 3", THERE, "in leaves_the_process")),
    "KeyboardInterrupt": (RemoteError, ("KeyboardInterrupt: not the caller's", THERE)),
    "rpc_sync in async def": (
        BlockingCallError,
        ("rpc_sync of who", "nothing was sent", "write `await rpc.rpc_async(...)`", THERE),
    ),
    "wait in async def": (BlockingCallError, ("hold on 'worker0'", "write `await future`", THERE)),
    "second init_rpc": (
        AlreadyInitializedError,
        ("'worker0' already runs in this process", "rpc.shutdown() before another"),
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, processes=True, options=rpc.RpcOptions(timeout=20.0)) as cluster:
        cluster.run(remote_code.call_everybody)
        yield cluster


@pytest.fixture(autouse=True)
def _serves_on(cluster: Cluster) -> Iterator[None]:
    """After each of them everybody answers everybody, from the same processes."""
    pids = cluster.run(remote_code.process_id)
    with no_leaked_references(cluster):
        yield
    assert cluster.run(remote_code.call_everybody) == [["worker0", "worker1"]] * 2
    assert cluster.run(remote_code.process_id) == pids


def test_each_bad_call_has_its_expectation() -> None:
    assert EXPECTED.keys() == bad_calls.CALLS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_call(cluster: Cluster, name: str) -> None:
    error, words = EXPECTED[name]
    failure = cluster.call(0, bad_calls.attempt, name)
    failure.check(error, *words)
    if error is EncodeError and "cannot travel" in failure.message:
        assert failure.fields["path"]
        assert f"{failure.fields['path']} cannot travel" in failure.message


def test_an_error_keeps_nothing_of_its_caller_alive(cluster: Cluster) -> None:
    """A cycle through a traceback would keep RRefs, and with them memory of other workers."""
    assert cluster.call(0, bad_calls.kept_alive_by_failures) == []


def test_a_timeout(cluster: Cluster) -> None:
    failure = cluster.call(0, bad_calls.too_long, "slow", 0.3)
    failure.check(
        CallTimeoutError,
        "tests.faults.remote_code:hold on 'worker1' took longer than 0.3 s",
        "'worker1' is told to cancel it, which ends a coroutine",
        "a function in a thread runs on until it checks rpc.current_call()",
        "give a longer timeout=, or math.inf",
    )
    assert failure.fields["worker"] == "worker1"
    assert failure.fields["function"] == "tests.faults.remote_code:hold"
    assert failure.fields["phase"] == "waiting"
    assert 0.3 <= failure.fields["elapsed"] < SOON
    cluster.call(1, remote_code.release, "slow")
