"""Properties and attributes of a value, read through the stand-ins of its RRef."""

from __future__ import annotations

import asyncio
import datetime
import functools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import BlockingCallError, CallRefusedError, CallTimeoutError
from telegrad.rpc import RpcOptions, RRef
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from tests.rpc.rref.programs import GateError, confirmed, drained, gates, make_slowly, on


@dataclass
class Settings:
    rate: float
    names: list[str]


class Box:
    kind = "a box"

    def __init__(self, content: Any) -> None:
        self.content = content
        self.settings = Settings(0.5, ["a", "b"])
        self.double: Callable[[int], int] = lambda x: 2 * x
        self.reads = 0
        self._hidden = 1

    @property
    def size(self) -> int:
        self.reads += 1
        return len(self.content)

    @functools.cached_property
    def area(self) -> int:
        return int(self.size**2)

    @property
    def broken(self) -> int:
        raise GateError("a property that fails")

    @property
    def inner(self) -> RRef[Any]:
        return RRef(self.content)

    def get(self) -> Any:
        return self.content

    def __getattr__(self, name: str) -> str:
        if name == "made_up":
            return "by __getattr__"
        raise AttributeError(f"a box has no {name!r}")


def make_unknown(gate: str = "") -> Any:
    """Returns an object of a class that only its worker can find, since it has no module."""

    class Unknown:
        def __init__(self) -> None:
            self.answer = 42

        def twice(self, x: int) -> int:
            return 2 * x

    if gate:
        gates[gate].wait(30)
    return Unknown()


@dataclass(slots=True)
class Tools:
    """Holds what its worker may call, and others may not."""

    slot: Callable[..., Any] = subprocess.getoutput


class Drawer:
    method = functools.partialmethod(subprocess.getoutput)
    module = os

    @functools.cached_property
    def cached(self) -> Callable[..., Any]:
        return subprocess.getoutput

    def lines(self) -> Iterator[str]:
        yield "one"

    def __getattr__(self, name: str) -> Any:
        if name == "made_up":
            return subprocess.getoutput
        raise AttributeError(name)


class Caller:
    __call__ = functools.partial(subprocess.getoutput)


def make_path() -> Path:
    return Path("/")


async def read_on_the_user_loop(rref: RRef[Box]) -> tuple[str, int]:
    try:
        _ = rref.rpc_sync().size
    except BlockingCallError as error:
        said = str(error)
    proxy: Any = rref.rpc_async()
    return said, await proxy.size()


def calls_sent() -> int:
    return rpc.statistics().calls_sent


def test_a_stand_in_reads_what_is_no_method(worker0: None) -> None:
    """In torch the access gives a partial, whatever the name is."""
    rref = rpc.remote("worker1", Box, ([1, 2, 3],))
    box = rref.rpc_sync()
    assert box.size == 3
    assert box.content == [1, 2, 3]
    assert box.kind == "a box"
    assert box.area == 9  # which is no property, and has no __set__
    assert rref.rpc_async().area().wait() == 9
    assert box.settings == Settings(0.5, ["a", "b"])
    assert box.settings.names[1] == "b"
    assert box.made_up == "by __getattr__"
    assert box.double(4) == 8
    assert box.get() == [1, 2, 3]
    assert box.inner.owner_name() == "worker1"
    assert box.inner.rpc_sync().pop() == 3
    assert box.size == 2
    own = RRef(Box("ab")).rpc_sync()
    assert (own.size, own.content, own.get()) == (2, "ab", "ab")


def test_the_other_stand_ins_read_with_empty_parentheses(worker0: None) -> None:
    rref = rpc.remote("worker1", Box, (np.ones(3),))
    later: Any = rref.rpc_async()
    assert later.size().wait() == 3
    np.testing.assert_array_equal(later.content().wait(), np.ones(3))
    content = rref.remote().content()
    assert content.owner_name() == "worker1"
    np.testing.assert_array_equal(content.to_here(), np.ones(3))
    assert content.rpc_sync().shape == (3,)
    with pytest.raises(TypeError, match=r"Box.size is no method but int; an attribute is read"):
        later.size(1).wait()
    with pytest.raises(AttributeError, match="no 'nothing'"):
        later.nothing().wait()


def test_errors_of_attributes_are_those_of_the_owner(worker0: None) -> None:
    rref = rpc.remote("worker1", Box, ("x",))
    untyped: Any = rref.rpc_sync()
    with pytest.raises(GateError, match="a property that fails"):
        _ = untyped.broken
    with pytest.raises(AttributeError, match="a box has no 'nothing'"):
        _ = untyped.nothing
    with pytest.raises(AttributeError, match="a box has no 'nothing'"):
        untyped.nothing()
    assert not hasattr(untyped, "nothing")
    sent = calls_sent()
    for proxy in (untyped, rref.rpc_async(), rref.remote(), rref.rpc_stream()):
        for name in ("_hidden", "__array__", "__float__"):
            with pytest.raises(AttributeError, match="underscore"):
                getattr(proxy, name)
    assert calls_sent() == sent


def test_special_methods_are_refused_here_with_what_to_write(worker0: None) -> None:
    rref: Any = rpc.remote("worker1", Box, ("x",))
    assert rref.rpc_sync().get() == "x"
    sent = calls_sent()
    for proxy in (rref.rpc_sync(), rref.rpc_async(), rref.remote(), rref.rpc_stream()):
        for use in (
            lambda proxy: proxy["a"],
            lambda proxy: proxy.__setitem__("a", 1),
            lambda proxy: proxy.__delitem__("a"),
            len,
            iter,
            lambda proxy: "a" in proxy,
        ):
            with pytest.raises(TypeError, match=r"not had through an RRef .*to_here\(\)"):
                use(proxy)
        with pytest.raises(TypeError, match=r"\[\.\.\.\]\); use a \.get\(\.\.\.\)"):
            proxy["a"]
        with pytest.raises(TypeError, match=r"len\(\)\); use (?!.*\.get).*function that is called"):
            proxy.__len__()
        with pytest.raises(AttributeError, match="'content' is not set through an RRef"):
            proxy.content = 4
        assert proxy
    with pytest.raises(AttributeError, match=r"write rref\.rpc_sync\(\)\.append\(\.\.\.\)"):
        rref.append(3)
    assert not hasattr(rref, "__array__")
    assert calls_sent() == sent
    with pytest.raises(TypeError, match="a Box cannot be called"):
        rref.rpc_sync()()


def test_a_class_that_the_reply_names_is_known(worker0: None) -> None:
    array = rpc.remote("worker1", np.zeros, (3,))
    assert array.to_here().shape == (3,)
    confirmed(array)  # with its class
    before = calls_sent()
    assert array.rpc_sync().sum() == 0
    assert calls_sent() == before + 1
    assert array.rpc_sync().shape == (3,)
    assert calls_sent() == before + 2


def test_of_an_unknown_class_each_name_is_asked_for_once(worker0: None) -> None:
    rref = rpc.remote("worker1", make_unknown)
    assert rref.rpc_sync().answer == 42
    before = calls_sent()
    assert [rref.rpc_sync().twice(x) for x in range(3)] == [0, 2, 4]
    assert calls_sent() == before + 4
    assert rref.rpc_async().twice(4).wait() == 8
    assert calls_sent() == before + 5


def test_an_attribute_of_what_is_still_created_is_waited_for(worker0: None) -> None:
    gates["slow"] = threading.Event()
    rref = rpc.remote("worker1", make_unknown, ("slow",))
    with pytest.raises(CallTimeoutError, match=r"RRef\.answer"):
        _ = rref.rpc_sync(timeout=0.05).answer
    later: Any = rref.rpc_async()
    answers = [later.answer() for _ in range(20)]
    gates["slow"].set()
    assert [answer.wait() for answer in answers] == [42] * 20
    assert rref.rpc_sync().answer == 42
    failed: RRef[Any] = rpc.remote("worker1", make_slowly, ("slow", None))
    with pytest.raises(GateError, match="the gate is shut"):
        _ = failed.rpc_sync().anything


def test_the_question_and_the_call_share_one_timeout(worker0: None) -> None:
    """In torch the timeout of a proxy holds twice: for the type, then for the call."""
    rref = rpc.remote("worker1", make_unknown)
    untyped: Any = rref.rpc_sync(timeout=50.0)
    limits: list[float] = []
    agent = current_agent()
    sent = agent.calling.send

    def send(*args: Any, **kwargs: Any) -> Any:
        limits.append(kwargs["timeout"])
        return sent(*args, **kwargs)

    began = time.monotonic()
    asked = untyped.twice
    passed = time.monotonic() - began
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.calling, "send", send)
        assert (asked(1), asked(2)) == (2, 4)
    assert 50.0 - passed <= limits[0] < 50.0
    assert limits[1:] == [50.0]


def test_the_user_loop_reads_through_a_future(worker0: None) -> None:
    rref = rpc.remote("worker1", Box, ("abc",))
    said, size = rpc.rpc_sync("worker2", read_on_the_user_loop, (rref,))
    assert "await rref.rpc_async().size(...)" in said
    assert size == 3

    async def read() -> int:  # on a loop of the program's own
        later: Any = rref.rpc_async()
        size: int = await later.size()
        return size + rref.rpc_sync().size

    assert asyncio.run(read()) == 6


@pytest.mark.parametrize("proxy", [RRef.rpc_sync, RRef.rpc_async, RRef.remote])
def test_the_policy_holds_for_attributes(worker0: None, proxy: Callable[[RRef[Any]], Any]) -> None:
    """A property runs code: that of a foreign class is not the caller's to run."""

    def read(rref: RRef[Any], name: str) -> Any:
        found = getattr(proxy(rref), name)
        if proxy is RRef.rpc_async:
            return found().wait()
        return found().to_here() if proxy is RRef.remote else found

    path = rpc.remote("worker1", make_path)
    with pytest.raises(CallRefusedError, match="parent"):
        read(path, "parent")
    now = rpc.remote("worker1", np.arange, (6,))
    assert read(now, "size") == 6
    box = rpc.remote("worker1", Box, (datetime.timedelta(1),))
    assert read(box, "content") == datetime.timedelta(1)


def test_the_policy_holds_for_a_callable_that_an_attribute_holds(
    cluster: Cluster, subtests: pytest.Subtests
) -> None:
    """However it comes to be there: nobody may run what `callables` does not let him call."""
    held_by: list[tuple[type[Any], str]] = [(Tools, "slot"), (Caller, "__call__")]
    held_by += [(Drawer, name) for name in ("method", "cached", "made_up")]

    def body(cls: type[Any], name: str) -> None:
        rref = rpc.remote("worker1", cls)
        called: Any = rref.rpc_sync()
        with pytest.raises(CallRefusedError, match="subprocess"):
            called("echo run") if name == "__call__" else getattr(called, name)("echo run")
        kept: Any = rref.remote()
        with pytest.raises(CallRefusedError, match="subprocess"):
            made = kept("echo run") if name == "__call__" else getattr(kept, name)("echo run")
            made.to_here()

    for cls, name in held_by:
        with subtests.test(cls=cls.__name__, name=name):
            on(cluster, 0, body, cls, name)
    drained(cluster)


def test_nothing_is_read_of_a_module_or_a_frame(worker0: None) -> None:
    """From one it is a step or two to all that the process holds."""
    module = rpc.remote("worker1", Drawer).remote().module()
    with pytest.raises(CallRefusedError, match=r"os\.environ'?: .* module"):
        _ = module.rpc_sync().environ
    with pytest.raises(CallRefusedError, match=r"os\.getcwd"):
        module.rpc_sync().getcwd()
    with pytest.raises(CallRefusedError, match=r"os\.environ"):
        module.remote().environ().to_here()
    frame: Any = rpc.remote("worker1", Drawer).remote().lines().remote().gi_frame()
    with pytest.raises(CallRefusedError, match="f_globals"):
        frame.remote().f_globals().to_here()


def test_only_what_is_exposed_is_read_where_that_is_the_rule() -> None:
    with Cluster(2, options=RpcOptions(callables="exposed")) as cluster:
        hidden = on(cluster, 1, lambda: RRef(Box("x")))
        shown = on(cluster, 1, lambda: RRef(Shown(3)))
        on(cluster, 1, rpc.publish, "hidden", hidden)
        on(cluster, 1, rpc.publish, "shown", shown)

        def body() -> None:
            assert rpc.lookup("worker1", "shown").rpc_sync().content == 3
            with pytest.raises(CallRefusedError):
                _ = rpc.lookup("worker1", "hidden").rpc_sync().content

        on(cluster, 0, body)


@rpc.expose
class Shown:
    def __init__(self, content: int) -> None:
        self.content = content
