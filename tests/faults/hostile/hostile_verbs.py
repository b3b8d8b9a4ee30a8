"""The hostile cases of `telegrad.rpc`: each verb that waits, stopped in its middle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

from telegrad import rpc
from telegrad.errors import NotEnoughResultsError, RendezvousError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.rpc.verbs.publish import _Published
from tests.faults.hostile import hostile_remote as remote
from tests.faults.hostile.hostile_remote import hold
from tests.faults.hostile.hostile_row import Table, lost, prepared, row
from tests.faults.remote_code import LIMIT, gate

VERBS: Table = {}

CALLEE = {"caller": ("callee",)}  # whose call is given up when the caller is lost
OWNER = {"caller": ("owner",), "callee": ("owner",)}
BOTH = {"caller": ("callee", "owner")}


# -- calls and their futures -----------------------------------------------------------------------


@row(VERBS, "rpc.rpc_sync", ends=lost("callee"), cancels=CALLEE)
def rpc_sync(name: str) -> object:
    return rpc.rpc_sync("callee", hold, (name,), timeout=math.inf)


@row(VERBS, "rpc.rpc_async", "rpc.Future", "rpc.Future.wait", ends=lost("callee"), cancels=CALLEE)
def rpc_async(name: str) -> object:
    return rpc.rpc_async("callee", hold, (name,), timeout=math.inf).wait()


@row(VERBS, "rpc.Future.__await__", ends=lost("callee"), cancels=CALLEE)
def await_future(name: str) -> object:
    async def main() -> str:
        return await rpc.rpc_async("callee", hold, (name,), timeout=math.inf)

    return asyncio.run(main())


@row(VERBS, "rpc.Future.then", ends=lost("callee"), cancels=CALLEE)
def then(name: str) -> object:
    called = rpc.rpc_async("callee", hold, (name,), timeout=math.inf)
    return called.then(lambda done: done.value()).wait()


def both(name: str) -> list[rpc.Future[str]]:
    return [rpc.rpc_async(to, hold, (name,), timeout=math.inf) for to in ("callee", "owner")]


TWO: Any = {"held": ("callee", "owner"), "cancels": BOTH}


@row(VERBS, "rpc.wait_all", ends=lost("callee", "owner"), **TWO)
def wait_all(name: str) -> object:
    return rpc.wait_all(both(name))


@row(VERBS, "rpc.collect_all", **TWO, given_up=None)
def collect_all(name: str) -> object:
    """Waits for the other one, too."""
    return [type(done.exception()).__name__ for done in rpc.collect_all(both(name)).wait()]


@row(
    VERBS,
    "rpc.as_completed",
    "rpc.AsCompleted",
    "rpc.AsCompleted.__next__",
    ends=lost("callee", "owner"),
    **TWO,
)
def as_completed(name: str) -> object:
    return [done.value() for done in rpc.as_completed(both(name))]


@row(VERBS, "rpc.as_completed", "rpc.AsCompleted.__anext__", ends=lost("callee", "owner"), **TWO)
def async_as_completed(name: str) -> object:
    async def main() -> list[str]:
        return [done.value() async for done in rpc.as_completed(both(name))]

    return asyncio.run(main())


TOO_FEW: Any = {"given_up": NotEnoughResultsError}


@row(VERBS, "rpc.first_n", **TWO, **TOO_FEW)
def first_1(name: str) -> object:
    """The other one will do."""
    return [done.value() for done in rpc.first_n(both(name), 1).wait()]


NEITHER = {"callee": NotEnoughResultsError, "owner": NotEnoughResultsError}


@row(VERBS, "rpc.first_n", ends=NEITHER, **TWO, **TOO_FEW)
def first_2(name: str) -> object:
    return [done.value() for done in rpc.first_n(both(name), 2).wait()]


def calls_both(name: str) -> list[tuple[str, Any, tuple[str]]]:
    return [(to, hold, (name,)) for to in ("callee", "owner")]


@row(VERBS, "rpc.gather", ends=lost("callee", "owner"), **TWO)
def gather(name: str) -> object:
    return rpc.gather(calls_both(name), timeout=math.inf).wait()


@row(VERBS, "rpc.gather", **TWO, **TOO_FEW)
def gather_1(name: str) -> object:
    return rpc.gather(calls_both(name), 1, timeout=math.inf).wait()


@row(VERBS, "rpc.gather", ends=NEITHER, **TWO, **TOO_FEW)
def gather_2(name: str) -> object:
    return rpc.gather(calls_both(name), 2, timeout=math.inf).wait()


# -- functions that wait in their turn -------------------------------------------------------------

ASYNC: Any = {"ends": lost("callee", "owner"), "held": ("owner",), "cancels": OWNER}
THROUGH: Any = {**ASYNC, "via": ("callee",)}


@row(VERBS, "rpc.rpc_sync", **THROUGH)
def plain_function(name: str) -> object:
    return rpc.rpc_sync("callee", remote.relay, (name,), timeout=math.inf)


@row(VERBS, "rpc.rpc_sync", **THROUGH)
def async_def(name: str) -> object:
    return rpc.rpc_sync("callee", remote.relay_on_the_loop, (name,), timeout=math.inf)


@row(VERBS, "rpc.to_thread", **THROUGH)
def to_thread(name: str) -> object:
    return rpc.rpc_sync("callee", remote.relay_in_a_thread, (name,), timeout=math.inf)


@row(VERBS, "rpc.functions", **ASYNC)
def async_execution(name: str) -> object:
    return rpc.rpc_sync("callee", remote.relay_by_future, (name,), timeout=math.inf)


# -- references ------------------------------------------------------------------------------------

OF_CALLEE: Any = {"ends": lost("callee", owner_of_value="callee"), "cancels": CALLEE}


@row(VERBS, "rpc.remote", "rpc.RRef.to_here", **OF_CALLEE)
def to_here(name: str) -> object:
    return rpc.remote("callee", hold, (name,), timeout=math.inf).to_here(timeout=math.inf)


@row(VERBS, "rpc.RRef.__await__", **OF_CALLEE)
def await_rref(name: str) -> object:
    rref = rpc.remote("callee", hold, (name,), timeout=math.inf)

    async def main() -> str:
        return await rref

    return asyncio.run(main())


def held_object(name: str) -> rpc.RRef[remote.Held]:
    return rpc.remote("callee", remote.Held, (name,))


def object_of(name: str) -> Any:
    return prepared(name)


PROXY: Any = {**OF_CALLEE, "prepare": held_object}
STREAM_OF_RREF: Any = OF_CALLEE


@row(VERBS, "rpc.RRef.rpc_sync", **PROXY)
def proxy_rpc_sync(name: str) -> object:
    return object_of(name).rpc_sync(timeout=math.inf).hold(name)


@row(VERBS, "rpc.RRef.rpc_sync", **PROXY)
def proxy_attribute(name: str) -> object:
    return object_of(name).rpc_sync(timeout=math.inf).held


@row(VERBS, "rpc.RRef.rpc_async", **PROXY)
def proxy_rpc_async(name: str) -> object:
    return object_of(name).rpc_async(timeout=math.inf).hold(name).wait()


@row(VERBS, "rpc.RRef.remote", **PROXY)
def proxy_remote(name: str) -> object:
    return object_of(name).remote(timeout=math.inf).hold(name).to_here(timeout=math.inf)


@row(VERBS, "rpc.RRef.local_value", ends=lost("callee"), cancels=CALLEE)
def local_value(name: str) -> object:
    rref = rpc.remote("callee", hold, (name,), timeout=math.inf)
    return rpc.rpc_sync("callee", remote.local, (rref, name), timeout=math.inf)


ARGUMENT: Any = {
    "ends": lost("callee", "owner", owner_of_value="owner"),
    "held": ("owner",),
    "via": ("callee",),
}


@row(VERBS, "rpc.RRef.to_here", **ARGUMENT, cancels={"caller": ("owner",)})
def argument_fetched(name: str) -> object:
    """A user hands a reference to another one, which waits for its value."""
    rref = rpc.remote("owner", hold, (name,), timeout=math.inf)
    return rpc.rpc_sync("callee", remote.fetches, (rref, name), timeout=math.inf)


@row(VERBS, "rpc.RRef.rpc_sync", **ARGUMENT, cancels=OWNER)
def argument_called(name: str) -> object:
    rref = rpc.remote("owner", remote.Held, (name,))
    return rpc.rpc_sync("callee", remote.calls_method, (rref, name), timeout=math.inf)


def hands_on(name: str) -> None:
    """Creates a value on the callee and gives the owner a reference, too."""
    if rpc.get_worker_info().name == "caller":
        rref = rpc.remote("callee", hold, (name,), timeout=math.inf)
        rpc.rpc_sync("owner", remote.keeps, ([rref], name))


@row(
    VERBS,
    "rpc.RRef",
    "rpc.RRef.to_here",
    at=("owner",),
    ends=lost("callee", owner_of_value="callee"),
    prepare=hands_on,
)
def handed_on(name: str) -> object:
    """Whoever was handed a reference waits on, whatever becomes of the one who made it."""
    return remote.kept(name).to_here(timeout=math.inf)


# -- streams ---------------------------------------------------------------------------------------


@row(VERBS, "rpc.stream", "rpc.Stream", "rpc.Stream.__next__", ends=lost("callee"), cancels=CALLEE)
def stream(name: str) -> object:
    with rpc.stream("callee", remote.one_and_no_more, (name,), timeout=math.inf) as items:
        return list(items)


class Yields:
    """Its generator stops in the middle."""

    def one_and_no_more(self, name: str) -> Iterator[int]:
        yield from remote.one_and_no_more(name)


def yielding_object(name: str) -> rpc.RRef[Yields]:
    return rpc.remote("callee", Yields)


@row(VERBS, "rpc.RRef.rpc_stream", **STREAM_OF_RREF, prepare=yielding_object)
def proxy_stream(name: str) -> object:
    with object_of(name).rpc_stream(timeout=math.inf).one_and_no_more(name) as items:
        return list(items)


@row(VERBS, "rpc.stream", "rpc.Stream.__anext__", ends=lost("callee"), cancels=CALLEE)
def async_stream(name: str) -> object:
    func = remote.one_and_no_more_on_the_loop

    async def main() -> list[int]:
        async with rpc.stream("callee", func, (name,), timeout=math.inf) as items:
            return [item async for item in items]

    return asyncio.run(main())


@row(VERBS, "rpc.stream", cancels=CALLEE, given_up=None)
def stream_producer(name: str) -> object:
    """The producer rests since nobody takes more; the consumer is busy with something else."""
    with rpc.stream("callee", remote.without_end, (name,), timeout=math.inf) as items:
        first = next(items)
        assert gate(name).wait(LIMIT)
        return len(first)


# -- names, the store ------------------------------------------------------------------------------


def lookup_waits(name: str) -> bool:
    return rpc.rpc_sync("callee", is_waited_for, (name,))


def is_waited_for(name: str) -> bool:
    return current_agent().attachments[_Published].waiting == 1  # that of the row below


@row(VERBS, "rpc.lookup", held=(), middle=lookup_waits, ends=lost("callee"))
def lookup(name: str) -> object:
    """Of a name under which nothing is published until the row is released."""
    return rpc.lookup("callee", name, timeout=math.inf)


def store_is_asked(name: str) -> bool:
    return rpc.rpc_sync("witness", all_wait_in_the_store)


STORE: Any = {"held": (), "middle": store_is_asked, "cut_off": (RendezvousError,)}


def all_wait_in_the_store() -> bool:
    coordinator = current_agent().attachments[JoinedJob].coordinator
    assert coordinator is not None
    return coordinator.store.waiting == 2  # whose rows stand below


@row(VERBS, "rendezvous.Store.get", **STORE)
def store_get(name: str) -> object:
    return current_agent().attachments[JoinedJob].store.get(f"row/{name}", LIMIT)


@row(VERBS, "rendezvous.Store.wait", **STORE)
def store_wait(name: str) -> None:
    current_agent().attachments[JoinedJob].store.wait([f"row/{name}"], LIMIT)
