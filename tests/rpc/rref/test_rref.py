from __future__ import annotations

import asyncio
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    CallTimeoutError,
)
from telegrad.rpc import RRef
from telegrad.testing import Cluster
from tests.rpc.rref.programs import (
    Model,
    N,
    await_it,
    block_the_loop,
    confirmed,
    drained,
    gates,
    give_back,
    hand_on,
    make_rref,
    make_slowly,
    make_soon,
    read_value,
    same_object,
    tell_owner,
)


def test_a_value_of_its_own_owner(worker0: None) -> None:
    model = Model(3)
    rref = RRef(model)
    assert rref.is_owner()
    assert rref.confirmed_by_owner()
    assert rref.owner_name() == "worker0"
    assert rref.owner() == rpc.get_worker_info()
    assert rref.to_here() is model
    assert rref.local_value() is model
    assert rref.rpc_sync().me() == "worker0"
    assert "Model" in repr(rref)
    assert "worker0" in repr(rref)
    assert rpc.statistics().owned_rrefs == 1


def test_a_value_made_by_remote(worker0: None) -> None:
    rref = rpc.remote("worker1", Model, (4,))
    assert not rref.is_owner()
    assert rref.owner_name() == "worker1"
    assert rref.rpc_sync().me() == "worker1"
    assert rref.rpc_sync().step(0.5, times=2) == 2
    first, second = rref.rpc_sync().read(), rref.rpc_sync().read()
    np.testing.assert_array_equal(first, [-1.0] * 4)
    assert first is not second
    assert first.flags.writeable
    assert rpc.statistics().user_rrefs == 1
    with pytest.raises(RuntimeError, match=r"owner of this RRef is 'worker1'"):
        rref.local_value()


def test_methods_of_every_kind(worker0: None) -> None:
    rref = rpc.remote("worker1", Model, (4,))
    assert rref.rpc_async().step(1.0).wait() == 1
    made = rref.remote().read()
    assert isinstance(made, RRef)
    np.testing.assert_array_equal(made.to_here(), [-1.0] * 4)
    assert rref.remote().part().to_here().owner_name() == "worker1"
    untyped: Any = rref.rpc_sync()
    with pytest.raises(AttributeError, match="nothing"):
        untyped.nothing()
    with pytest.raises(AttributeError, match="underscore"):
        operator.methodcaller("_secret")(rref.rpc_sync())
    assert untyped.steps == 1
    with pytest.raises(TypeError, match="'int' object is not callable"):
        untyped.steps()
    sent = rpc.statistics().calls_sent
    for proxy in (untyped, rref.rpc_async(), rref.remote()):
        assert "Model.step at 'worker1', not called" in repr(proxy.step)
    with pytest.raises(TypeError, match="UncalledMethod"):
        untyped.step + 1
    assert rpc.statistics().calls_sent == sent
    failed = rref.remote().nothing()
    with pytest.raises(AttributeError, match="nothing"):
        failed.to_here()


def test_rrefs_as_arguments_and_results(worker0: None) -> None:
    mine, theirs = RRef("zero"), rpc.remote("worker1", str, ("one",))
    assert rpc.rpc_sync("worker2", read_value, (mine,)) == "zero"
    assert rpc.rpc_sync("worker2", read_value, (theirs,)) == "one"
    assert rpc.rpc_sync("worker1", read_value, (theirs,)) == "one"
    assert rpc.rpc_sync("worker0", read_value, (mine,)) == "zero"
    assert rpc.rpc_sync("worker0", read_value, (theirs,)) == "one"
    assert rpc.rpc_sync("worker1", tell_owner, (theirs,)) == (True, "worker1", "worker1")
    assert rpc.rpc_sync("worker2", tell_owner, (theirs,)) == (False, "worker1", "worker2")
    assert rpc.rpc_sync("worker2", same_object, (mine, {"again": [mine, mine]}))
    home = rpc.rpc_sync("worker2", give_back, (mine,))
    assert home.is_owner()
    assert home.local_value() == "zero"
    path = ["worker1", "worker2", "worker0", "worker0", "worker1", "worker2"]
    assert hand_on(theirs, path) == "one"
    assert hand_on(mine, path) == "zero"
    of_rref = rpc.remote("worker1", make_rref, ("inner",))
    assert of_rref.to_here().to_here() == "inner"


def test_a_reference_travels_before_its_value_exists(worker0: None) -> None:
    gates["slow"] = threading.Event()
    rref = rpc.remote("worker1", make_slowly, ("slow", 5))
    assert not rref.confirmed_by_owner()
    assert "pending" in repr(rref)
    on_third = rpc.rpc_async("worker2", read_value, (rref,))
    on_owner = rpc.rpc_async("worker1", read_value, (rref,))
    bits = rref.rpc_async().bit_length()
    sums = rref.remote().bit_length()
    with pytest.raises(CallTimeoutError):
        rref.to_here(timeout=0.05)
    gates["slow"].set()
    assert rref.to_here() == 5
    assert on_third.wait() == on_owner.wait() == 5
    assert bits.wait() == sums.to_here() == 3
    confirmed(rref)


def test_the_owner_honours_the_timeout_of_to_here(worker0: None) -> None:
    """In torch the owner waits without limit."""
    gates["slow"] = threading.Event()
    rref = rpc.remote("worker0", make_slowly, ("slow", 5))
    assert rref.is_owner()
    assert not rref.confirmed_by_owner()
    with pytest.raises(CallTimeoutError, match="being created"):
        rref.to_here(timeout=0.05)
    gates["slow"].set()
    assert rref.to_here() == 5
    assert rref.local_value() == 5
    assert rref.confirmed_by_owner()


def test_a_parked_fetch_blocks_no_thread(worker0: None) -> None:
    gates["slow"] = threading.Event()
    rref = rpc.remote("worker1", make_slowly, ("slow", 5))
    fetches = [rref.rpc_async().bit_length() for _ in range(100)]
    before = threading.active_count()
    assert rpc.rpc_sync("worker1", give_back, (2,)) == 2
    assert threading.active_count() - before < 20
    gates["slow"].set()
    assert [fetch.wait() for fetch in fetches] == [3] * 100


def test_coroutines_make_values_and_await_them(worker0: None) -> None:
    rref = rpc.remote("worker1", make_soon, (8,))
    assert rref.to_here() == 8
    assert asyncio.run(await_it(rref)) == 8
    assert asyncio.run(await_it(RRef(9))) == 9
    assert rpc.rpc_sync("worker2", await_it, (rref,)) == 8
    assert "await rref" in rpc.rpc_sync("worker2", block_the_loop, (rref,))


def test_many_threads_share_and_drop(cluster: Cluster) -> None:
    def work(r: int, seed: int) -> None:
        peers = [f"worker{(r + d) % N}" for d in (1, 2)]
        rref = rpc.remote(peers[seed % 2], np.ones, (seed + 1,))
        others = [rpc.rpc_async(peer, read_value, (rref,)) for peer in peers]
        if seed % 3 == 0:
            del rref
        for other in others:
            assert other.wait().sum() == seed + 1

    with ThreadPoolExecutor(8 * N) as pool:
        for _ in range(3):
            works = [(r, seed) for seed in range(8) for r in range(N)]
            running = [pool.submit(cluster.call, r, work, r, seed) for r, seed in works]
            for each in running:
                each.result()
    drained(cluster)
