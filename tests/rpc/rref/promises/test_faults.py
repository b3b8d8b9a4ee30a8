from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import (
    CallRefusedError,
    CallTimeoutError,
    DecodeError,
    NotInitializedError,
    TelegradError,
    ValueNotFoundError,
)
from telegrad.rpc import Future, RRef
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.call.user_call import call_payload
from telegrad.rpc.rref.calls import NAME, Creation
from telegrad.rpc.seams import current_agent, reference_of
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.rref.programs import (
    GateError,
    Model,
    N,
    confirmed,
    drained,
    fail,
    gates,
    give_back,
    make_rref,
    make_slowly,
    on,
    read_value,
    registry,
)


@pytest.mark.parametrize("kind", ["rref.call", "rref.read", "rref.stream"])
def test_the_owner_refuses_private_names(worker0: None, kind: str) -> None:
    """A proxy never sends one; whoever writes the message by hand is refused too."""
    rref = rpc.remote("worker1", Model, (4,))
    agent, reference = current_agent(), reference_of(rref)
    payload = {"rref": list(reference.rref), "method": "_secret", "args": [], "kwargs": {}}
    request = {**payload, "stream": 10**6} if kind == "rref.stream" else payload
    with pytest.raises(CallRefusedError, match="underscore"):
        agent.calling.send(reference.owner, kind, request, function="x").wait()


def test_a_value_that_is_gone_is_named_by_its_owner(worker0: None) -> None:
    """As after a cut, at whose end the owner has let go of what this worker still holds."""
    rref = rpc.remote("worker1", Model, (4,))
    assert rref.rpc_sync().me() is not None
    agent, reference = current_agent(), reference_of(rref)
    owner, payload = reference.owner, {"rref": list(reference.rref)}
    rref.release()
    assert rpc.rpc_sync("worker1", len, ([],)) == 0  # brings the release
    with pytest.raises(ValueNotFoundError, match="is not at its owner") as caught:
        agent.calling.send(owner, "rref.fetch", payload, function="x").wait()
    assert isinstance(caught.value, TelegradError)


@pytest.mark.parametrize("to", ["worker0", "worker1"])
def test_a_failed_creation(worker0: None, to: str) -> None:
    rref: RRef[Any] = rpc.remote(to, fail)
    for _ in range(2):
        with pytest.raises(GateError, match="no value here"):
            rref.to_here()
    with pytest.raises(GateError):
        rref.rpc_sync().anything()
    assert not rref.confirmed_by_owner()
    with pytest.raises(GateError):
        rpc.rpc_sync("worker2", read_value, (rref,))
    wait_until_gone("creations", lambda: [] if "failed" in repr(rref) else [rref])


def words_of(rref: RRef[Any]) -> list[Any]:
    """What a holder says of an RRef before and after it asked for the value."""
    before = rref.confirmed_by_owner(), "confirmed" in repr(rref)
    with pytest.raises(GateError, match="no value here"):
        rref.to_here()
    return [before, (rref.confirmed_by_owner(), "confirmed" in repr(rref))]


def words_when(rref: RRef[Any], here: str, fails: str) -> list[Any]:
    """The same where the creation fails while this worker has the RRef."""
    confirmed(rref)
    gates[here].set()
    gates[fails].set()
    return words_of(rref)[1:]


def words_in_method(rref: RRef[Any], here: str, fails: str) -> bool:
    """What is said once a method of the value was asked for, which there is not."""
    confirmed(rref)
    gates[here].set()
    gates[fails].set()
    with pytest.raises(GateError):
        rref.rpc_sync().me()
    return rref.confirmed_by_owner()


def fail_slowly(gate: str) -> None:
    gates[gate].wait(30)
    fail()


def is_confirmed(rref: RRef[Any]) -> bool:
    return rref.confirmed_by_owner()


def hand_back(rref: RRef[Any]) -> RRef[Any]:
    return rref


def test_no_holder_says_confirmed_of_a_failed_creation(worker0: None) -> None:
    """Only its creator and its owner did not: a third worker has it from either, or back."""
    rref: RRef[Any] = rpc.remote("worker1", fail)
    with pytest.raises(GateError):
        rref.to_here()
    nobody = [(False, False), (False, False)]
    assert rpc.rpc_sync("worker2", words_of, (rref,)) == nobody
    assert rpc.rpc_sync("worker1", words_of, (rref,)) == nobody
    assert words_of(rpc.rpc_sync("worker1", hand_back, (rref,))) == nobody
    assert words_of(rpc.rpc_sync("worker2", hand_back, (rref,))) == nobody
    by_method = rpc.remote("worker1", Model, (1,)).remote().step("no rate")
    with pytest.raises(Exception, match="ufunc|subtract"):
        by_method.to_here()
    assert not rpc.rpc_sync("worker2", is_confirmed, (by_method,))


@pytest.mark.parametrize("ask", [words_when, words_in_method])
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_a_creation_that_fails_while_others_hold_it(
    worker0: None, owner: str, ask: Callable[..., Any]
) -> None:
    """They had counted it as confirmed; whoever has asked knows better."""
    gates.update({name: threading.Event() for name in ("here", "fails")})
    rref: RRef[Any] = rpc.remote(owner, fail_slowly, ("fails",))
    asked = rpc.rpc_async("worker2", ask, (rref, "here", "fails"))
    assert gates["here"].wait(30)
    assert asked.wait() in (False, [(False, False)])


async def make_slowly_async(gate: str, value: int) -> int:
    await rpc.to_thread(gates[gate].wait, 30)
    return value


@rpc.functions.async_execution
def make_slowly_later(gate: str, value: int) -> Future[int]:
    return rpc.rpc_async("worker2", make_slowly, (gate, value))


class Slow:
    def make(self, gate: str, value: int) -> int:
        gates[gate].wait(30)
        return value


def hear_of(rref: RRef[int], gate: str) -> tuple[str, bool]:
    """What another holder is told, who asks before the value is made and after."""
    told = []
    for _ in range(2):
        with pytest.raises(CallTimeoutError) as caught:
            rref.to_here()
        told.append(type(caught.value).__name__)
        gates[gate].set()
    return told[0], rref.confirmed_by_owner()


@pytest.mark.few(2)
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
@pytest.mark.parametrize("form", ["plain", "coroutine", "future", "method"])
def test_a_creation_that_takes_too_long_has_failed_for_all(
    worker0: None, owner: str, form: str
) -> None:
    """For those who hold an RRef to it, too, whatever the function returns in the end."""
    gates[form] = threading.Event()
    forms = {"plain": make_slowly, "coroutine": make_slowly_async, "future": make_slowly_later}
    if form == "method":
        slow = rpc.remote(owner, Slow)
        rref = slow.remote(timeout=0.1).make(form, 5)
    else:
        rref = rpc.remote(owner, forms[form], (form, 5), timeout=0.1)
    other = rpc.rpc_async("worker2", hear_of, (rref, form))
    with pytest.raises(CallTimeoutError):
        rref.to_here()
    assert other.wait() == ("CallTimeoutError", False)
    with pytest.raises(CallTimeoutError):
        rref.to_here()
    assert not rref.confirmed_by_owner()


def test_release(worker0: None) -> None:
    rref = rpc.remote("worker1", Model, (4,))
    running = rref.rpc_async().me()
    rref.release()
    rref.release()
    assert running.wait() == "worker1"  # the call in flight kept the value
    proxies = (rref.rpc_sync(), rref.rpc_async(), rref.remote(), rref.rpc_stream())
    for use in (rref.to_here, *(proxy.me for proxy in proxies)):
        with pytest.raises(RuntimeError, match="released"):
            use()
    with pytest.raises(RuntimeError, match="released"):
        rpc.rpc_sync("worker2", read_value, (rref,))
    assert "released" in repr(rref)
    with RRef("inside") as mine:
        assert mine.local_value() == "inside"
    with pytest.raises(RuntimeError, match="released"):
        mine.to_here()


def test_a_reference_that_is_dropped_at_once(worker0: None) -> None:
    assert rpc.remote("worker1", Model, (4,)).rpc_async().step(1.0).wait() == 1
    for _ in range(20):
        rpc.remote("worker1", Model, (4,))
        RRef(object())


def test_a_reply_that_nobody_reads_gives_its_forks_back(worker0: None) -> None:
    rpc.rpc_async("worker1", make_rref, ("unread",))


def test_an_argument_that_cannot_travel_leaves_nothing(worker0: None) -> None:
    rref = RRef("mine")
    with pytest.raises(TypeError):
        rpc.rpc_sync("worker1", read_value, (rref, object()))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        rpc.remote("worker1", read_value, (rref, object()))  # type: ignore[arg-type]


def test_no_copy_and_no_pickle(worker0: None) -> None:
    rref = RRef("mine")
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pass it as an argument"):
            make(rref)
    assert rref != RRef("mine")
    assert len({rref, rref}) == 1


def test_wrong_timeouts_are_refused(worker0: None) -> None:
    rref = RRef("mine")
    for make in (rref.to_here, rref.rpc_sync, rref.rpc_async, rref.remote, rref.rpc_stream):
        with pytest.raises(ValueError, match="above 0"):
            make(timeout=0)


def test_without_an_agent() -> None:
    with pytest.raises(NotInitializedError):
        RRef(1)


def test_after_shutdown() -> None:
    with Cluster(2) as cluster:
        kept = on(cluster, 0, lambda: rpc.remote("worker1", Model, (4,)))
        mine = on(cluster, 0, lambda: RRef(1))
    assert kept.owner_name() == "worker1"
    assert not kept.is_owner()
    assert mine.is_owner()
    for use in (kept.to_here, mine.to_here, mine.local_value, kept.rpc_sync().me):
        with pytest.raises(NotInitializedError):
            use()
    repr(kept), repr(mine)


def test_a_lost_user_lets_go_one_bound_later() -> None:
    with Cluster(N, options=rpc.RpcOptions(timeout=20.0, lost_after=1.0)) as cluster:
        kept = on(cluster, 1, lambda: rpc.rpc_sync("worker0", make_rref, ("kept",)))
        assert registry(cluster, 0).counts() == (1, 0)
        cluster.kill(1)
        drained(cluster)
        del kept


def test_a_lost_user_holds_its_values_for_one_bound() -> None:
    """What it had sent on may still be on its way to be counted."""
    with Cluster(N, options=rpc.RpcOptions(timeout=20.0)) as cluster:
        kept = on(cluster, 1, lambda: rpc.rpc_sync("worker0", make_rref, ("kept",)))
        owner, lost = registry(cluster, 0), reference_of(kept).registry.me
        told = threading.Event()
        on(cluster, 0, current_agent).inbox.on_loss(lambda *_: told.set())
        cluster.kill(1)
        assert told.wait(20.0)
        assert owner.counts() == (1, 0)
        owner.expire(lost)
        assert owner.counts() == (0, 0)
        del kept


def test_a_worker_that_speaks_for_others_is_not_heard(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage in a well-formed stream: it is logged, nothing is freed, the service goes on."""
    kept = on(cluster, 0, lambda: rpc.rpc_sync("worker1", make_rref, ("kept",)))

    def lie(kept: RRef[str]) -> None:
        agent, reference = current_agent(), reference_of(kept)
        assert reference.fork is not None
        owner, rref, fork = reference.owner, list(reference.rref), list(reference.fork)
        agent.messages.post(owner, "rref.user_delete", [rref, fork])
        agent.messages.post(owner, "rref.user_delete", [rref, "fork"])
        agent.messages.post(owner, "rref.child_accept", None)
        agent.messages.post(owner, "rref.creation_abandon", [rref])
        assert rpc.rpc_sync("worker1", give_back, (1,)) == 1

    on(cluster, 2, lie, kept)
    wait_until_gone("log", lambda: [] if "is not its child" in caplog.text else ["no line"])
    assert on(cluster, 0, kept.to_here) == "kept"
    del kept
    caplog.clear()
    drained(cluster)


def test_nobody_creates_the_value_of_anothers_rref(cluster: Cluster) -> None:
    """The ids of a creation were taken from whoever named them."""
    gates["slow"] = threading.Event()
    pending = on(cluster, 0, lambda: rpc.remote("worker1", make_slowly, ("slow", "honest")))

    def forge(pending: RRef[str]) -> None:
        reference = reference_of(pending)
        payload = call_payload(give_back, ("forged",), {})[1]
        record = CallRecord("forged", {NAME: Creation(reference.rref, reference.fork)})
        agent = current_agent()
        owner = agent.members.find("worker1")
        future = agent.calling.send(owner, "rpc.remote", payload, function="forged", record=record)
        with pytest.raises(DecodeError, match="is not its creator"):
            future.wait()

    on(cluster, 2, forge, pending)
    gates["slow"].set()
    assert on(cluster, 0, pending.to_here) == "honest"
    del pending
    drained(cluster)
