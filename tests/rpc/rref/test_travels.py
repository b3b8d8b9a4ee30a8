"""RRefs inside of what is sent: containers, dataclasses, values, values of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from telegrad import rpc
from telegrad.rpc import Future, RRef, functions
from telegrad.testing import Cluster
from tests.rpc.rref.programs import drained, on


@dataclass
class Pair:
    first: RRef[Any]
    second: RRef[Any] | None = None


@dataclass(frozen=True)
class Team:
    lead: Pair
    others: list[Pair]


class Point(NamedTuple):
    x: RRef[Any]
    y: int


def in_dataclass(rref: RRef[Any]) -> Any:
    return Team(Pair(rref, rref), [Pair(rref)])


def in_everything(rref: RRef[Any]) -> Any:
    return [
        [1, [rref]],
        {"a": {3: rref}},
        (rref, (rref,)),
        {rref},
        Point(rref, 2),
        in_dataclass(rref),
    ]


def found_in(value: Any) -> list[RRef[Any]]:
    """Returns every RRef in a value, once for each place."""
    if isinstance(value, RRef):
        return [value]
    if isinstance(value, Team):
        return [*found_in(value.lead), *(each for pair in value.others for each in found_in(pair))]
    if isinstance(value, Pair):
        return [*found_in(value.first), *found_in(value.second)]
    if isinstance(value, dict):
        return [each for item in value.values() for each in found_in(item)]
    if isinstance(value, list | tuple | set):
        return [each for item in value for each in found_in(item)]
    return []


def echo(value: Any) -> Any:
    assert all(rref.confirmed_by_owner() for rref in found_in(value))
    return value


async def echo_later(value: Any) -> Any:
    return value


@functions.async_execution
def echo_promise(value: Any) -> Future[Any]:
    return rpc.rpc_async("worker2", echo, (value,))


class Echo:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


def test_in_every_container_there_and_back(worker0: None) -> None:
    """One RRef in several places arrives as one."""
    for rref in (RRef("text"), rpc.remote("worker1", str, ("text",))):
        value = in_everything(rref)
        count = len(found_in(value))
        for to in ("worker0", "worker1", "worker2"):
            for func in (echo, echo_later, echo_promise):
                back = rpc.rpc_sync(to, func, (value,))
                assert list(map(type, back)) == list(map(type, value))
                found = found_in(back)
                assert len(found) == count
                assert len(set(found)) == 1
                assert found[0].owner_name() == rref.owner_name()
                assert found[0].to_here() == "text"


def test_in_values_that_are_referred_to(worker0: None) -> None:
    inner = rpc.remote("worker1", str, ("inner",))
    outer = rpc.remote("worker2", Echo, (in_dataclass(inner),))
    inner.release()
    assert found_in(outer.rpc_sync().get())[0].to_here() == "inner"
    assert found_in(outer.rpc_sync().value)[0].to_here() == "inner"
    held = outer.remote().get()
    outer.release()
    assert found_in(held.to_here())[0].to_here() == "inner"
    deep = rpc.remote("worker0", Echo, (held,))
    held.release()
    again = deep.rpc_sync().get()
    assert again.owner_name() == "worker2"
    assert found_in(again.to_here())[0].to_here() == "inner"


def test_a_value_that_refers_to_itself_is_told_at_the_end_only(cluster: Cluster) -> None:
    """The owner's reference to its own value is a circle that Python's collector cannot see."""

    def body() -> Echo:
        own = RRef(Echo(None))
        own.local_value().value = own
        assert own.rpc_sync().get() is not own  # a call to oneself copies
        assert own.rpc_sync().get().local_value() is own.local_value()
        return own.local_value()

    echo = on(cluster, 0, body)
    echo.value.release()
    del echo
    drained(cluster)
