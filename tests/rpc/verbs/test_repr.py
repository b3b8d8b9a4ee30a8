"""What a user sees of an agent, a future and a reference at a prompt: worker, type, state, age."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from telegrad import rpc
from telegrad.rpc import Future
from telegrad.testing import Cluster


def said(value: object) -> str:
    """Returns the repr of a value, without its age."""
    return re.sub(r"\d+\.\d s old", "N s old", repr(value))


class Gate:
    """Lets a test say when a call goes on."""

    def __init__(self) -> None:
        self.open = threading.Event()


GATE = Gate()


def wait_for_gate(x: int) -> int:
    assert GATE.open.wait(40)
    return x


def fail() -> None:
    raise ValueError("no")


class Model:
    def __init__(self) -> None:
        assert GATE.open.wait(40)

    def ready(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _gate() -> None:
    GATE.open = threading.Event()


def test_a_future_of_nobody() -> None:
    future: Future[float] = Future()
    assert said(future) == "<Future: pending, N s old>"
    future.set_result(1.0)
    assert said(future) == "<Future: done (float), N s old>"
    child = future.then(lambda done: 1 / 0)
    assert said(child) == "<Future of then() of a future: failed (ZeroDivisionError), N s old>"


def see_a_call() -> None:
    future = rpc.rpc_async("worker1", wait_for_gate, (1,))
    name = "tests.rpc.verbs.test_repr:wait_for_gate"
    assert said(future) == f"<Future of the call of {name} on 'worker1': pending, N s old>"
    GATE.open.set()
    while not future.done():
        pass
    expected = f"<Future of the call of {name} on 'worker1': done, not decoded, N s old>"
    assert said(future) == expected
    future.wait()
    assert said(future) == f"<Future of the call of {name} on 'worker1': done (int), N s old>"
    failed = rpc.rpc_async("worker1", fail)
    with pytest.raises(ValueError, match="no"):
        failed.wait()
    assert said(failed).endswith("fail on 'worker1': failed (ValueError), N s old>")


def see_references() -> None:
    own = rpc.RRef(np.zeros(3))
    assert said(own) == "<RRef to numpy.ndarray at 'worker0': owner, N s old>"
    theirs = rpc.remote("worker1", Model)
    ours = rpc.remote("worker0", Model)
    assert (
        said(theirs)
        == "<RRef to tests.rpc.verbs.test_repr.Model at 'worker1': pending, being created, N s old>"
    )
    assert (
        said(ours)
        == "<RRef to tests.rpc.verbs.test_repr.Model at 'worker0': owner, being created, N s old>"
    )
    GATE.open.set()
    assert theirs.rpc_sync().ready()
    assert ours.rpc_sync().ready()
    while "confirmed" not in repr(theirs):
        pass  # the answer to the creation may come after that to the call
    assert (
        said(theirs) == "<RRef to tests.rpc.verbs.test_repr.Model at 'worker1': confirmed, N s old>"
    )
    assert said(ours) == "<RRef to tests.rpc.verbs.test_repr.Model at 'worker0': owner, N s old>"
    theirs.release()
    assert (
        said(theirs) == "<RRef to tests.rpc.verbs.test_repr.Model at 'worker1': released, N s old>"
    )


@pytest.mark.parametrize("func", [see_a_call, see_references])
def test_calls_and_references(func: object) -> None:
    with Cluster(2) as cluster:
        cluster.call(0, func)  # type: ignore[arg-type]


def test_an_agent() -> None:
    with rpc.init_rpc("me", options=rpc.RpcOptions(token="a token only of the tests")) as agent:
        assert said(agent) == "<Agent 'me' (rank 0 of 1): running, N s old>"
    assert said(agent) == "<Agent 'me' (rank 0 of 1): ended, N s old>"
