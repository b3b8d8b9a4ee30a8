"""Names for objects: one worker publishes an object, others look it up and get an RRef.

     rpc.lookup   {name, within}   answered with the RRef once something is published under the
                                   name; after `within` seconds with the names that are published

A lookup that comes before the object waits at the publisher, without a thread, until its timeout.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any, final

from telegrad.critical import critical
from telegrad.errors import (
    CallTimeoutError,
    DecodeError,
    DuplicateNameError,
    ValueNotFoundError,
)
from telegrad.rpc.agent.core import AgentCore, current_agent
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.base.served_call import current_served_call
from telegrad.rpc.call.user_call import CallMode, UserCall
from telegrad.rpc.future.future import Future, new_future, wait_or_cancel
from telegrad.rpc.future.unread import origin_here
from telegrad.rpc.rref.rref import RRef, reference_of, rref_of
from telegrad.rpc.rref.table import RRefRegistry
from telegrad.rpc.rref.value import Arrival
from telegrad.transport import refuse_in_section, refuse_to_block
from telegrad.types import WorkerInfo

LOOKUP = "rpc.lookup"
LONGEST_NAME = 200  # characters: it stands in errors and logs
MOST_NAMES = 20  # in an error
# The publisher can name the objects that are published instead, so it ends a lookup at its timeout.
# If the caller hears nothing for this much longer, it ends the lookup itself.
ANSWER_SECONDS = 1.0


def publish(name: str, obj: object) -> None:
    """Lets other workers find an object of this worker by a name: `rpc.lookup(worker, name)`.

    The object stays here, and stays alive, until `unpublish` or the end of the agent; RRefs from
    lookups keep it alive beyond that. Every member of the job may look it up and get its value,
    whatever `RpcOptions.callables` is. Calls of its methods and reads of its attributes through the
    RRef still need the permission of `callables` for its class. Lookups that wait for the name are
    answered before this returns.

    Args:
        name: Any text of up to 200 characters; each worker has names of its own.
        obj: The object, or an RRef. For an RRef of another worker's value, a lookup returns an RRef
            to that value. The name has a reference of its own; yours may be released.

    Raises:
        DuplicateNameError: Another object is published here under this name.
        ValueError: The name is empty or too long.
        TypeError: The name is no text.
        InvalidUseError: `obj` is an RRef that was released, or belongs to another agent.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("server"):
        ...     rpc.publish("weights", [1.0, 2.0])
        ...     rpc.lookup("server", "weights").to_here()
        [1.0, 2.0]
    """
    refuse_in_section("rpc.publish")
    current_agent().attachments[_Published].add(_checked(name), obj)


def unpublish(name: str) -> None:
    """Removes a name, which then may be published again; RRefs that were looked up stay valid.

    Args:
        name: The name that was given to `publish`.

    Raises:
        ValueNotFoundError: Nothing is published here under this name.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("server"):
        ...     rpc.publish("weights", [1.0, 2.0])
        ...     rpc.unpublish("weights")
        ...     rpc.publish("weights", [3.0, 4.0])  # the name is free again
    """
    refuse_in_section("rpc.unpublish")
    current_agent().attachments[_Published].remove(_checked(name))


def lookup(to: str | int | WorkerInfo, name: str, timeout: float | None = None) -> RRef[Any]:
    """Returns an RRef to the object that a worker publishes under a name; waits for it.

    Args:
        to: Name, rank or WorkerInfo of the worker that publishes; may be this one.
        name: The name that is given to `publish`.
        timeout: Seconds above 0 to wait for it; None for `RpcOptions.timeout`.

    Raises:
        CallTimeoutError: The object was not published in time.
        WorkerLostError: The worker is gone.
        OwnerLostError: The worker has published an RRef whose owner is gone.
        UnknownWorkerError: There is no such worker.
        BlockingCallError: On an event loop that telegrad runs; write
            `await rpc.to_thread(rpc.lookup, to, name)`.
        ValueError: The name or the timeout is invalid.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     cluster.call(1, rpc.publish, "weights", [1.0, 2.0])
        ...     cluster.call(0, lambda: rpc.lookup("worker1", "weights").to_here())
        [1.0, 2.0]
    """
    refuse_to_block(f"lookup of {name!r}", "write `await rpc.to_thread(rpc.lookup, to, name)`")
    agent = current_agent()
    limit = seconds(timeout, agent.options.timeout)
    label, payload = f"rpc.lookup of {name!r}", {"name": _checked(name), "within": limit}
    peer = agent.members.find(to)
    future = agent.calling.send(
        peer, LOOKUP, payload, function=label, timeout=limit + ANSWER_SECONDS, at_once=True
    )
    found: RRef[Any] | list[str] = wait_or_cancel(future)
    if isinstance(found, list):
        raise CallTimeoutError(
            f"nothing was published as {name!r} on {peer.name!r} within {limit:.3g} s (published: "
            f"{_listed(found)}); publish it there first: rpc.publish({name!r}, ...)",
            worker=peer.name,
            function=label,
            phase="waiting for the name",
            elapsed=limit,
        )
    reference = reference_of(found)
    reference.whence = origin_here() or reference.whence
    return found


def attach_to(agent: AgentCore) -> None:
    """For the library: makes an agent able to publish; call it after `rref.attach_to`."""
    published = _Published(agent)
    agent.attachments.attach(published)
    agent.serving.serve(LOOKUP, published.prepare)
    agent.life.after_close(published.close)


@final
class _Published:
    """The objects that one agent has published. May be used from any thread."""

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._registry = agent.attachments[RRefRegistry]
        self._names_lock = threading.Lock()  # guards all attributes below
        self._rrefs: dict[str, RRef[Any]] = {}
        self._waiting: dict[Future[Any], str] = {}  # lookups, to the names that they wait for

    @property
    def waiting(self) -> int:
        """The number of lookups that wait for a name."""
        return len(self._waiting)

    def add(self, name: str, value: object) -> None:
        rref = self._rref(value, name)
        with critical.section, self._names_lock:
            taken = self._rrefs.setdefault(name, rref) is not rref
            waiting = [each for each, wanted in self._waiting.items() if wanted == name]
            for future in waiting:
                del self._waiting[future]
        if taken:
            rref.release()
            raise DuplicateNameError(
                f"something is published as {name!r} on worker {self._agent.info.name!r} already; "
                "choose another name, or rpc.unpublish() it first"
            )
        for future in waiting:
            future.try_set_result(rref)

    def remove(self, name: str) -> None:
        with critical.section, self._names_lock:
            removed = self._rrefs.pop(name, None)
            names = sorted(self._rrefs)
        if removed is None:
            raise ValueNotFoundError(
                f"nothing is published as {name!r} on worker {self._agent.info.name!r} "
                f"(published: {_listed(names)})"
            )

    def prepare(self, caller: WorkerInfo, payload: object) -> UserCall:
        """Serves a lookup."""
        del caller
        body = payload if isinstance(payload, dict) else {}
        name, within = body.get("name"), body.get("within", math.inf)
        if not isinstance(name, str) or type(within) not in (int, float) or not within >= 0:
            raise DecodeError("the body of a lookup is not {name, within}")
        label = f"rpc.lookup of {name[:LONGEST_NAME]!r}"
        return UserCall(self._find, (name, within), mode=CallMode.FUTURE, name=label)

    def close(self) -> None:
        """Forgets all objects, as the agent is gone."""
        with critical.section, self._names_lock:
            self._rrefs.clear()
            self._waiting.clear()

    def _find(self, name: str, within: float) -> Future[RRef[Any]]:
        future: Future[Any] = new_future(
            self._agent.pool.submit, f"what will be published as {name!r}"
        )
        with critical.section, self._names_lock:
            rref = self._rrefs.get(name)
            if rref is None:
                self._waiting[future] = name
        if rref is not None:
            future.set_result(rref)
            return future
        served = current_served_call()
        if served is not None:
            served.on_cancel(partial(self._forget, future))
        if within < threading.TIMEOUT_MAX:
            future._call_when_done(
                self._agent.deadlines.after(within, partial(self._tell_names, future)).cancel
            )
        return future

    def _tell_names(self, future: Future[Any]) -> None:
        """Ends a lookup at its timeout with the names that are published; on the loop."""
        self._forget(future)
        with critical.section, self._names_lock:
            names = sorted(self._rrefs)[:MOST_NAMES]
        future.try_set_result(names)

    def _forget(self, future: Future[Any]) -> None:
        """Removes a lookup whose caller waits no longer."""
        with critical.section, self._names_lock:
            self._waiting.pop(future, None)

    def _rref(self, value: object, name: str) -> RRef[Any]:
        """Returns a new RRef, which only the name holds."""
        registry = self._registry
        if not isinstance(value, RRef):
            return rref_of(registry.own(value))
        given = reference_of(value)
        # Counted like an RRef that this worker has sent to itself.
        fork, failed = registry.carry(given, registry.me)
        given.hears()
        arrival = Arrival(given.rref, fork, given.owner, given.type_name, failed)
        own = registry.arrive(arrival, registry.me)
        own.whence = f"rpc.publish of {name!r}"
        return rref_of(own)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _checked(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a published object is named by a str, not by {name!r}")
    if not name or len(name) > LONGEST_NAME:
        raise ValueError(
            f"the name of a published object has 1 to {LONGEST_NAME} characters, not {len(name)}"
        )
    return name
