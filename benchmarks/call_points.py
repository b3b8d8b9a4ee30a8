"""What an empty call passes on its way, from outside: which functions are timed, and in which order.

Nothing in the package knows of this. Before the workers join, `install` puts a wrapper around each
function that notes when it began and ended, on a clock that all processes of a machine share. A
function that is not there any more, or that a transport does without, is left out, and its phase is
one with that behind it.
"""

from __future__ import annotations

import functools
import importlib
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["CALLEE", "CALLER", "LAST", "PATH", "Events", "Point", "cost", "install", "walk"]

CALLER, CALLEE = "caller", "callee"
Events = list[tuple[int, str]]
"""When, in nanoseconds, and where: `MODULE:FUNCTION begin`."""


class Point(NamedTuple):
    """One place of the path.

    Attributes:
        side: Whose.
        phase: What the time before it, since the last point, went to.
        function: `MODULE:CLASS.METHOD`, below `telegrad`.
        edge: `begin` or `end`.
        overlaps: Whether another thread goes on before this one has got here: who is woken may run at
            once, and on the same core. The phase ends with whichever comes first.
        over: The transport on whose way it lies; "" for all.
    """

    side: str
    phase: str
    function: str
    edge: str
    overlaps: bool = False
    over: str = ""

    @property
    def event(self) -> str:
        """What an event at this point says."""
        return f"{self.function} {self.edge}"


SEAL, OPEN = "rpc.call.codec:MessageCodec.seal", "rpc.call.codec:MessageCodec.open"
POST, NEXT = (
    "transport.session.connection:Connection.post",
    "transport.session.connection:Connection.next_message",
)
TAKE, INBOX = "transport.session.connection:Connection.take", "rpc.pool.inbox:Inbox.on_envelope"
PUT, SEND = (
    "transport.sockets.message_socket:DirectSocket.put",
    "transport.grpc.carrier:GrpcCarrier.send",
)
POLL = "transport.io.spin:Spin.poll"

PATH: Final = (
    Point(CALLER, "verb: agent, arguments, name of the function", SEAL, "begin"),
    Point(CALLER, "encode the request", SEAL, "end"),
    Point(
        CALLER,
        "enter the call, its deadline, its future",
        "rpc.call.delivery:Delivery.start",
        "begin",
    ),
    Point(CALLER, "admission", POST, "begin"),
    Point(CALLER, "post, reach the writer", NEXT, "begin"),
    Point(CALLER, "frame: pack and tag", NEXT, "end"),
    Point(CALLER, "reach the socket", PUT, "begin", over="local"),
    Point(CALLER, "write", PUT, "end", overlaps=True, over="local"),
    Point(CALLER, "reach gRPC", SEND, "begin", over="grpc"),
    Point(CALLER, "gRPC: write", SEND, "end", overlaps=True, over="grpc"),
    Point(CALLEE, "wire, wake-up of who reads", POLL, "end", over="local"),
    Point(CALLEE, "read", TAKE, "begin"),
    Point(CALLEE, "check the tag, unpack the frame", INBOX, "begin"),
    Point(CALLEE, "accept: admission, context", "rpc.pool.pool:Pool.submit_call", "begin"),
    Point(CALLEE, "find a thread, leave the sockets", "rpc.call.serving:Serving._serve", "begin"),
    Point(CALLEE, "may it be called", OPEN, "begin"),
    Point(CALLEE, "decode the request", OPEN, "end"),
    Point(CALLEE, "read the arguments, run, settle", SEAL, "begin"),
    Point(CALLEE, "encode the reply", SEAL, "end"),
    Point(CALLEE, "reply", POST, "begin"),
    Point(CALLEE, "post, reach the writer", NEXT, "begin"),
    Point(CALLEE, "frame: pack and tag", NEXT, "end"),
    Point(CALLEE, "reach the socket", PUT, "begin", over="local"),
    Point(CALLEE, "write", PUT, "end", overlaps=True, over="local"),
    Point(CALLEE, "reach gRPC", SEND, "begin", over="grpc"),
    Point(CALLEE, "gRPC: write", SEND, "end", overlaps=True, over="grpc"),
    Point(CALLER, "wire, wake-up of who reads", POLL, "end", over="local"),
    Point(CALLER, "read", TAKE, "begin"),
    Point(CALLER, "check the tag, unpack the frame", INBOX, "begin"),
    Point(
        CALLER,
        "find the call, end its deadline",
        "rpc.future.future:Future.try_set_result",
        "begin",
    ),
    Point(
        CALLER,
        "complete the future",
        "rpc.future.future:Future.try_set_result",
        "end",
        overlaps=True,
    ),
    Point(CALLER, "wake-up of the caller", "rpc.future.future:Future.value", "begin"),
)
LAST: Final = "return"


def install(events: Events) -> list[str]:
    """Wraps every function of the path; returns those that are not there.

    Args:
        events: Where they note what they pass.
    """
    missing = []
    for function in dict.fromkeys(point.function for point in PATH):
        module, _, qualname = function.partition(":")
        owner, _, name = qualname.rpartition(".")
        try:
            holder = getattr(importlib.import_module(f"telegrad.{module}"), owner)
            setattr(holder, name, noting(getattr(holder, name), function, events))
        except (ImportError, AttributeError):
            missing.append(function)
    return missing


def noting(func: Callable[..., Any], name: str, events: Events) -> Callable[..., Any]:
    note, clock = events.append, time.perf_counter_ns
    begin, end = f"{name} begin", f"{name} end"

    @functools.wraps(func)
    def noting(*args: Any, **kwargs: Any) -> Any:
        note((clock(), begin))
        try:
            return func(*args, **kwargs)
        finally:
            note((clock(), end))

    return noting


def cost(times: int = 1000, tries: int = 20) -> float:
    """Returns the nanoseconds that a note takes: the least of some tries, whatever else runs here."""
    events: Events = []

    def nothing() -> None:
        return

    def took(func: Callable[[], None]) -> int:
        began = time.perf_counter_ns()
        for _ in range(times):
            func()
        return time.perf_counter_ns() - began

    noted = noting(nothing, "nothing", events)
    both = [(took(noted), took(nothing)) for _ in range(tries)]
    return max(0.0, (min(a for a, _ in both) - min(b for _, b in both)) / (2 * times))


def walk(
    began: int, ended: int, events: dict[str, Events], path: Sequence[Point] = PATH
) -> list[int | None]:
    """Returns when a call passed each point: each the first one behind the point before it.

    Args:
        began: When the call did.
        ended: When it had its value.
        events: By side, in the order of time.
        path: The points.

    Returns:
        For each point of the path, None where this call has not passed it.
    """
    window = {
        side: some[bisect_left(some, (began, "")) : bisect_left(some, (ended + 1, ""))]
        for side, some in events.items()
    }
    now = began
    passed: list[int | None] = []
    for point in path:
        found = next(
            (when for when, where in window[point.side] if when >= now and where == point.event),
            None,
        )
        if found is not None and not point.overlaps:
            now = found
            passed = [None if each is None else min(each, found) for each in passed]
        passed.append(found)
    return passed
