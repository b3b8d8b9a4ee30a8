"""RRef: a reference to a value that lives on one worker and may be held on any."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from telegrad.critical import in_section
from telegrad.errors import InvalidUseError
from telegrad.rpc.agent.core import AgentCore, current_agent
from telegrad.rpc.base.frames import cut_own_frames
from telegrad.rpc.call.codec import Prepared, kept
from telegrad.rpc.call.user_call import call_message
from telegrad.rpc.future.future import Future, new_future, wait_or_cancel
from telegrad.rpc.future.unread import watched
from telegrad.rpc.rref.calls import Method, RRefCalls
from telegrad.rpc.rref.protocol import ForkState
from telegrad.rpc.rref.proxy import MethodProxy, SyncProxy, not_here
from telegrad.rpc.rref.stream import open_method_stream
from telegrad.rpc.rref.table import Reference, RRefRegistry
from telegrad.rpc.rref.value import type_of
from telegrad.transport import barred, put_off, refuse_to_block

if TYPE_CHECKING:
    from telegrad.rpc.stream.stream import Stream
    from telegrad.types import WorkerInfo

T = TypeVar("T")


@final
class RRef(Generic[T]):
    """A counted reference to a value that lives on its owner.

    `RRef(value)` makes this worker the owner; `remote` makes another one. An RRef may be an
    argument, a result or inside a container of either; the value stays where it is. The owner
    keeps it as long as any worker holds an RRef to it. Equal and hashed by identity.

    Args:
        value: The value that the new RRef refers to; not copied.

    Raises:
        NotInitializedError: No agent runs here.

    Example:
        >>> import numpy as np
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("owner"):
        ...     rref = rpc.RRef(np.array([3.0, 4.0]))
        ...     rref.owner_name(), rpc.rpc_sync("owner", np.linalg.norm, (rref.to_here(),)).item()
        ('owner', 5.0)
    """

    __slots__ = ("__weakref__", "_late", "_reference")

    _reference: Reference  # until code that interrupted telegrad has got it, `_late` ends first
    _late: Future[None]

    def __init__(self, value: T) -> None:
        agent = current_agent()
        registry = agent.attachments[RRefRegistry]
        if in_section():
            _refer_later(self, agent, "RRef(...)", partial(registry.own, value))
        else:
            self._reference = registry.own(value)

    def to_here(self, timeout: float | None = None) -> T:
        """Returns the value: the object itself on its owner, else a new copy each time.

        An exception that leaves the wait (Ctrl-C, an alarm's) ends the fetch, not the creation.

        Args:
            timeout: Seconds; None for the default. On the owner it bounds the wait for a value
                that is still being created.

        Raises:
            CallTimeoutError: It did not come in time; a later call may succeed.
            OwnerLostError: The owner is lost.
            BlockingCallError: On an event loop that telegrad runs; write `await rref`.
            InvalidUseError: The RRef was released.
            Exception: The error of the creation of the value, of its own type.
        """
        if barred():
            self._check_may_block("to_here")
        try:
            return wait_or_cancel(self._fetch(timeout))
        except BaseException as error:
            cut_own_frames(error)
            raise

    def local_value(self) -> T:
        """Returns the object itself; only on its owner.

        Waits for a value that is still being created, for the default timeout.

        Raises:
            InvalidUseError: This worker is not the owner, or the RRef was released.
            CallTimeoutError: It was not there in time.
        """
        reference = self._reference
        if reference.fork is not None:
            raise InvalidUseError(
                f"local_value() on worker {reference.registry.me.name!r}, but the owner of this "
                f"RRef is {reference.owner.name!r}; use to_here() for a copy or rpc_sync() to run "
                "a method there"
            )
        if barred():
            self._check_may_block("local_value")
        try:
            return wait_or_cancel(self._fetch(None))
        except BaseException as error:
            cut_own_frames(error)
            raise

    def owner(self) -> WorkerInfo:
        """Returns the worker that holds the value."""
        return self._reference.owner

    def owner_name(self) -> str:
        """Returns the name of the worker that holds the value."""
        return self._reference.owner.name

    def is_owner(self) -> bool:
        """Returns True if this worker holds the value."""
        return self._reference.fork is None

    def confirmed_by_owner(self) -> bool:
        """Returns True if the owner is known to have counted this RRef and to live.

        It is False while a creation that this worker asked for runs, and for good once this worker
        knows that the creation failed. The owner tells every worker that holds an RRef to the
        value, before `to_here()` raises for that reason.
        """
        reference = self._reference
        if reference.released:
            return False
        if reference.fork is not None:
            return reference.registry.users.state(reference.fork) is ForkState.CONFIRMED
        value = reference.registry.value(reference.rref)
        return value is not None and value.done() and value.exception() is None

    def rpc_sync(self, timeout: float | None = None) -> T:
        """Returns a stand-in for the value: `r.rpc_sync().m(x)` runs a method on the owner.

        Typed as the value, and `r.rpc_sync().a` is the value of its attribute or property. A name
        that the object lacks is an AttributeError from the owner. Methods that are `async def` or
        marked `async_execution` run as functions of that kind do. If the class of the value is not
        imported here, or does not have the name, the owner is asked once if it is a method; the
        timeout holds for that and the call together. It has no special methods (`[...]`, `len()`).

        Args:
            timeout: Seconds above 0 for each call; None for the default, `math.inf` for no limit.
        """
        reference = self._reference
        calls = reference.registry.agent.attachments[RRefCalls]
        return cast("T", SyncProxy(calls, reference, timeout))

    def rpc_async(self, timeout: float | None = None) -> MethodProxy[Future[Any]]:
        """Returns a stand-in whose methods give a Future: `r.rpc_async().m(x).wait()`.

        An attribute or property is read as a method without arguments is called: `.a().wait()`.

        Args:
            timeout: Seconds above 0 for each call; None for the default, `math.inf` for no limit.
        """
        calls = self._calls()

        def begin(method: Method, limit: float | None) -> Future[Any]:
            return watched(calls.registry.agent, calls.call(method, limit))

        return MethodProxy(calls, self._reference, timeout, begin)

    def remote(self, timeout: float | None = None) -> MethodProxy[RRef[Any]]:
        """Returns a stand-in whose methods give an RRef to their value, which stays there.

        `.a()` gives one to an attribute or property.

        Args:
            timeout: Seconds above 0 until each value must be there; None for the default,
                `math.inf` for no limit.
        """
        calls = self._calls()

        def begin(method: Method, limit: float | None) -> RRef[Any]:
            if not in_section():
                return rref_of(calls.create_by_method(method, limit))
            payload = Prepared.of(method.payload()).freeze()
            late = partial(calls.create_by_method, method, limit, payload)
            return rref_of_late(calls.registry.agent, method.label, late)

        return MethodProxy(calls, self._reference, timeout, begin)

    def rpc_stream(self, timeout: float | None = None) -> MethodProxy[Stream[Any]]:
        """Returns a stand-in whose methods give a Stream: `for x in r.rpc_stream().m(n): ...`.

        The method is a generator or an async generator, or returns another iterator; it runs on
        the owner, a little ahead of its reader, as for `rpc.stream`.

        Args:
            timeout: Seconds above 0 to wait for each next item; None for the default, `math.inf`
                for no limit.
        """
        calls = self._calls()
        return MethodProxy(calls, self._reference, timeout, partial(open_method_stream, calls))

    def backward(
        self,
        context_id: int | None = None,
        *,
        gradient: Any = None,
        retain_graph: bool = False,
        create_graph: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Computes the gradients of the value, a Tensor, where the value lives.

        With a context it is `dist_autograd.backward(context_id, [rref])`. It returns when all
        workers that took part are done, wherever the RRef is held; a value that is still being
        created is waited for. Without one it is `value.backward()`, which adds to `Tensor.grad`,
        and works on the owner alone.

        When it raises, no worker that can be reached keeps gradients of this call.

        Args:
            context_id: The id that `with dist_autograd.context() as context_id` gave; None for a
                backward that does not leave the owner.
            gradient: The gradient of the value, in its shape; None for a scalar means 1.
            retain_graph: Keeps the graph for another backward.
            create_graph: Records the backward, so that the gradients can be differentiated again;
                implies `retain_graph`.
            timeout: Seconds above 0; None for `RpcOptions.timeout`; `math.inf` for no limit. The
                time left to the served call bounds it. Without a context it bounds only the wait
                for a value that is still being created.

        Raises:
            TypeError: The value is no Tensor, or `context_id` no context id.
            AutogradError: The value is no scalar and no gradient was given, or needs none; the
                gradient has another shape; the graph was freed, or changed in place.
            ContextError: The context was released, or this worker, or the owner, knows none of
                that id; no context was given, and this worker is not the owner.
            ContextMismatchError: A gradient reached a value that was received in another context.
            OwnerLostError: The owner is lost.
            WorkerLostError: Another worker that takes part is lost.
            CallTimeoutError: Not all was done in time.
            BlockingCallError: On an event loop that telegrad runs.
            InvalidUseError: The RRef was released.
            Exception: The error of the creation of the value, or of a rule or hook of any worker.
        """
        from telegrad.dist_autograd import seams  # noqa: PLC0415 - a door

        seams.backward_from_rref(
            self,
            context_id,
            gradient=gradient,
            retain_graph=retain_graph,
            create_graph=create_graph,
            timeout=timeout,
        )

    def release(self) -> None:
        """Lets go of the value now, instead of when this object is garbage; idempotent."""
        try:
            reference = object.__getattribute__(self, "_reference")
        except AttributeError:  # the thread that makes it comes to this next
            if not self._late.done():
                put_off(self.release)
        else:
            reference.release()

    def __enter__(self) -> RRef[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    if not TYPE_CHECKING:  # a checker is to know its attributes

        def __getattr__(self, name: str) -> Any:
            if name == "_reference":  # another thread makes it
                self._late.wait()
                return object.__getattribute__(self, name)
            raise AttributeError(not_here(name))

    def __await__(self) -> Generator[Any, None, T]:
        """Awaits the value that `to_here()` returns."""
        return self._fetch(None).__await__()

    def __repr__(self) -> str:
        """Names the owner, the value's class where known, the reference's state and age."""
        reference = self._reference
        home = None if reference.fork else reference.registry.value(reference.rref)
        what = reference.type_name or type_of(home) or "a value"
        age = time.monotonic() - reference.made
        return f"<RRef to {what} at {reference.owner.name!r}: {self._state()}, {age:.1f} s old>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an RRef is counted and cannot be copied or pickled; pass it as an argument of a call, "
            "or return it from one"
        )

    def _state(self) -> str:
        reference = self._reference
        if reference.released:
            return "released"
        if reference.fork is not None:
            state, creation = reference.registry.users.state(reference.fork), reference.creation
            if state is None:
                return "released"
            if creation is not None and not creation.done():
                return f"{state.value}, being created"
            return state.value
        value = reference.registry.value(reference.rref)
        if value is None:
            return "gone"
        if not value.done():
            return "owner, being created"
        return "owner" if value.exception() is None else "owner, failed"

    def _calls(self) -> RRefCalls:
        return self._reference.registry.agent.attachments[RRefCalls]

    def _fetch(self, timeout: float | None) -> Future[T]:
        return self._calls().fetch(self._reference, timeout)

    def _check_may_block(self, verb: str) -> None:
        reference = self._reference
        if reference.fork is None:
            value = reference.registry.value(reference.rref)
            if value is None or value.done():
                return
        refuse_to_block(f"{verb}()", "write `await rref` in an async def function")


def rref_of(reference: Reference) -> RRef[Any]:
    """For the library: makes an RRef of a counted reference."""
    rref: RRef[Any] = object.__new__(RRef)
    rref._reference = reference
    return rref


def rref_of_late(agent: AgentCore, label: str, make: Callable[[], Reference]) -> RRef[Any]:
    """For the library: returns an RRef whose reference another thread makes.

    For code that interrupts a critical section of this thread.
    """
    rref: RRef[Any] = object.__new__(RRef)
    _refer_later(rref, agent, label, make)
    return rref


def _refer_later(
    rref: RRef[Any], agent: AgentCore, label: str, make: Callable[[], Reference]
) -> None:
    made = rref._late = watched(agent, new_future(agent.pool.submit, label))

    def run() -> None:
        try:
            rref._reference = make()
        except BaseException as error:  # for the code that uses the RRef, else for the log
            made.try_set_exception(error)
        else:
            made.try_set_result(None)

    put_off(run)


def reference_of(rref: RRef[Any]) -> Reference:
    """For the library: returns the counted reference that an RRef holds."""
    return rref._reference


def create_rref(
    agent: AgentCore,
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: object = (),
    kwargs: object = None,
    timeout: float | None = None,
) -> RRef[Any]:
    """Asks `to` to call a function and keep its value, as `rpc.remote` does.

    Raises:
        TypeError: An argument of this function has the wrong form.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
    """
    calls, peer = agent.attachments[RRefCalls], agent.members.find(to)
    if not in_section():
        return rref_of(calls.create(peer, func, args, kwargs, timeout))
    name, payload = call_message(func, args, kwargs)
    late = partial(calls.create_by, peer, func, (name, kept(payload)), timeout)
    return rref_of_late(agent, name, late)
