"""The owner's end of the calls that RRefs make; `calls` names them.

If the value is there already, the thread that serves the request answers it. A fetch or a method
call that arrives before its value waits for that without a thread.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

from telegrad.errors import CallRefusedError, DecodeError
from telegrad.rpc.base.failure import fresh_copy
from telegrad.rpc.base.served_call import ServedCall, current_served_call, last_served_call
from telegrad.rpc.call.bare_calls import ARGUMENTS
from telegrad.rpc.call.user_call import (
    CallMode,
    Prepare,
    UserCall,
    admit_function,
    mode_of,
    read_arguments,
)
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.waits import comes_from
from telegrad.rpc.rref.calls import (
    CALL,
    FETCH,
    NAME,
    READ,
    REMOTE,
    Creation,
    failed,
    result,
)
from telegrad.rpc.rref.protocol import RRefId, rref_id
from telegrad.rpc.rref.table import Reference, RRefRegistry
from telegrad.rpc.rref.value import name_of_class, word_of
from telegrad.types import WorkerInfo
from telegrad.wire import escaped, names, read_head

# -- the method of an RRef's value that a request names, and the caller's permission -------------
#
# If the value is there, the permission is checked before the arguments are decoded. While the value
# is being created, its class is not known: the permission is checked once the value is there.

_INTEGERS = frozenset({int})


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class AdmittedMethod:
    """A method whose name is public.

    Attributes:
        rref: The id of the value.
        reads: True if it is not called: the caller wants to know if the name is that of a method.
        judged: True if this caller may call it on this value; False if that is not known yet.
        value: The value itself, if that is there.
    """

    rref: RRefId
    name: str
    reads: bool = False
    judged: bool = False
    value: object = None

    def arguments(self, payload: object) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of a request.

        Raises:
            DecodeError: It has none, or names another method than was admitted.
        """
        fields = payload if isinstance(payload, dict) else {}
        args, kwargs = fields.get(ARGUMENTS), fields.get("kwargs")
        same = fields.get("method") == self.name and fields.get("rref") == list(self.rref)
        if not (same and isinstance(args, list) and isinstance(kwargs, dict)):
            raise DecodeError("the body of a method call is not {rref, method, args, kwargs}")
        return args, kwargs


def _read_rref(registry: RRefRegistry, ids: object) -> RRefId:
    """Returns the id of the value that a request names under `rref`.

    Raises:
        DecodeError: The request names no value, or no value of this worker.
    """
    if not (isinstance(ids, list) and len(ids) == 3 and _INTEGERS.issuperset(map(type, ids))):
        raise DecodeError("the body of a request names no RRef")
    rref = rref_id(ids)
    if rref.owner != registry.me.incarnation:
        raise DecodeError(f"{rref} is not owned by {registry.me.name!r}")
    return rref


# ------------------------------------------------------------------------------------------------


@final
class _Creation:
    """The creation of one value at its owner.

    The creator's deadline is for all holders: the value has failed once the owner hears that it
    has passed, whatever the function returns later. A value that was there before stays, and its
    reply tells the creator, which may have given up meanwhile.

    It has methods in place of closures: the record of a served call is kept, and a closure would
    keep the arguments with it.
    """

    __slots__ = ("_call", "_registry", "_rref", "_served")

    def __init__(self, registry: RRefRegistry, call: Callable[[], object]) -> None:
        self._registry = registry
        self._call = call
        self._rref: RRefId | None = None
        self._served: ServedCall | None = None

    def begin(self) -> RRefId:
        """Takes the call that is served now; returns the id of the value that it creates.

        Raises:
            DecodeError: The request does not name it.
        """
        served = self._served = current_served_call()
        creation = None if served is None else served.record.state.get(NAME)
        if served is None or not isinstance(creation, Creation):
            raise DecodeError("the header of a creation does not say what it creates")
        rref = self._rref = creation.rref
        if (value := self._registry.value(rref)) is not None:
            comes_from(value, served)
        # Last: a call that was cancelled before runs this at once, and the value must have its id.
        served.on_cancel(self._cancelled)
        return rref

    def make(self) -> object:
        """Calls the function in this thread; returns the reply to the creator."""
        rref = self._rref
        assert rref is not None
        try:
            value = self._call()
        except BaseException as error:  # around the user's function
            self._registry.settle(rref, None, error)
            raise
        given_up = self._settle(rref, value)
        if given_up is not None:
            raise given_up
        return word_of(value)

    def keep(self, done: Future[Any]) -> object:
        """Takes the result of the function; returns the reply to the creator."""
        error, rref = done.exception(), self._rref
        assert rref is not None
        if error is not None:
            self._registry.settle(rref, None, error)
            return failed(error)
        value = done.value()
        given_up = self._settle(rref, value)
        return word_of(value) if given_up is None else failed(given_up)

    def _settle(self, rref: RRefId, value: object) -> BaseException | None:
        """Keeps a value; returns the error if the creator's time was over before it was there."""
        served = self._served
        if served is not None:
            served.end()  # a cancellation or a deadline that comes from now on changes nothing
            if served.expired:
                return served.given_up()
        self._registry.settle(rref, value)
        return None

    def _cancelled(self) -> None:
        """Fails the value if the creator's time is over; if it is lost, others want the value."""
        served, rref = self._served, self._rref
        if served is not None and rref is not None and served.expired:
            self._registry.settle(rref, None, served.given_up())


def _keep_while_wanted(kept: list[Reference]) -> None:
    """Lets go of an expected value as soon as the call that is served is given up."""
    if (served := current_served_call()) is not None:
        served.on_cancel(kept.clear)


# -- the calls to values --------------------------------------------------------------------------

# Makes a stream of a generator that was called: (caller, payload, call).
Produce: TypeAlias = Callable[[WorkerInfo, object, UserCall], UserCall]


def _fetched(value: object) -> UserCall:
    return UserCall(lambda: value, name="RRef.to_here")


def _read_attribute(value: object, name: str) -> list[object]:
    found = getattr(value, name)
    return [True, None] if callable(found) else [False, found]


def _not_callable(value: object) -> TypeError:
    cls = type(value).__qualname__
    article = "an" if cls[:1].lower() in "aeiou" else "a"
    return TypeError(f"{article} {cls} cannot be called; name a method: rref.rpc_sync().m(...)")


@final
class RRefServing:
    """For the library: serves the calls of the RRefs to one agent's values."""

    def __init__(self, registry: RRefRegistry) -> None:
        self._registry = registry
        self._agent = registry.agent
        self._agent.serving.serve_named(REMOTE, self._admit_creation)
        self._agent.serving.serve(FETCH, self._prepare_fetch)
        self._agent.serving.serve_named(CALL, self._admit_call)
        self._agent.serving.serve_named(READ, self._admit_read)

    def admit(
        self,
        call: ServedCall,
        head: Mapping[str, object],
        produce: Produce | None = None,
        *,
        reads: bool = False,
    ) -> Prepare:
        """Returns the `prepare` of the method that a request names, before anything is decoded.

        If the value is there already, the caller's permission is checked here.

        Args:
            call: The request.
            head: The part of the document before the arguments.
            produce: Makes a stream of the method, a generator; None to call the method, or to read
                an attribute.
            reads: True to answer [True, None] for a method, and else [False, the attribute].

        Raises:
            DecodeError: The request names no method.
            CallRefusedError: The caller may not call it.
        """
        name, rref = head.get("method"), _read_rref(self._registry, head.get("rref"))
        if not isinstance(name, str):
            raise DecodeError("the body of a method call is not {rref, method, args, kwargs}")
        call.record.function = escaped(f"RRef.{name}", most=names.MAX_NAME_LENGTH)
        if name[:1] == "_" and (reads or name != "__call__"):
            refused = CallRefusedError(
                f"{name[:500]!r} begins with an underscore and is not had of an RRef's value "
                f"at {self._registry.me.name!r}"
            )
            self._agent.permissions.record(call.caller, name, "PRIVATE_NAME", refused, None)
            raise refused
        method = AdmittedMethod(rref, name, reads)
        value = self._registry.value(rref)
        if value is not None and value.done() and not value._failed:
            method.judged, method.value = True, value.value()
            self._agent.permissions.check_method(method.value, name, call.caller)
        return partial(self._prepare_method, method, produce)

    def _prepare_method(
        self,
        method: AdmittedMethod,
        produce: Produce | None,
        caller: WorkerInfo,
        payload: object,
    ) -> UserCall:
        args, kwargs = method.arguments(payload)

        def method_call(value: object) -> UserCall:
            permissions = self._agent.permissions
            if not method.judged:
                permissions.check_method(value, method.name, caller)
            name = f"{name_of_class(type(value))}.{method.name}"
            if method.reads:  # a property may be slow, or wait
                return UserCall(_read_attribute, (value, method.name), name=name)
            found = value if method.name == "__call__" else getattr(value, method.name)
            if callable(found):
                permissions.check_found(value, method.name, found, caller)
                call = UserCall(found, args, kwargs, mode_of(found), name)
                return call if produce is None else produce(caller, payload, call)
            if method.name == "__call__":
                raise _not_callable(value)
            if produce is not None:
                raise TypeError(
                    f"{name} is no method but {type(found).__name__}; rpc_stream() takes generator "
                    "methods, an attribute is read through rpc_sync()"
                )
            if args or kwargs:
                raise TypeError(
                    f"{name} is no method but {type(found).__name__}; an attribute is read without "
                    "arguments"
                )
            return UserCall(lambda: found, name=name)

        if method.judged:
            return method_call(method.value)
        return self._on_value(caller, method.rref, method.name, method_call)

    def on_value(
        self,
        caller: WorkerInfo,
        payload: object,
        name: str,
        user_call: Callable[[object], UserCall],
    ) -> UserCall:
        """Returns the UserCall that runs `user_call(value)` once a request's value is there.

        Args:
            caller: The worker that sent the request.
            payload: The body of the request, with the value's id as `rref`.
            name: The name of the request, for messages.
            user_call: Called in a thread of the pool, inside the call that is served.

        Raises:
            DecodeError: The request names no value of this worker.
            ValueNotFoundError: The value is gone.
        """
        rref = _read_rref(
            self._registry, payload.get("rref") if isinstance(payload, dict) else None
        )
        return self._on_value(caller, rref, name, user_call)

    def _on_value(
        self,
        caller: WorkerInfo,
        rref: RRefId,
        name: str,
        user_call: Callable[[object], UserCall],
    ) -> UserCall:
        value, kept = self._named(rref)
        agent = self._agent
        if not kept:
            return user_call(value.value())

        def run_later() -> Future[Any]:
            # Before the wait: a call that was given up by now lets go of the value at once.
            _keep_while_wanted(kept)
            return value.then(lambda done: _in_pool(done, kept))

        def _in_pool(done: Future[Any], kept: list[Reference]) -> Future[Any]:
            if (error := done.exception()) is not None:
                self._registry.event(self._registry.owners.tell, rref, caller)
                return failed(error)
            # In another thread than the one that made the value, whose reply must not wait for
            # this call.
            started: Future[Any] = new_future(agent.pool.submit, f"RRef.{name}")
            context = contextvars.copy_context()
            agent.pool.submit(context.run, started.set_result, kept)
            return started.then(lambda _: run_now(done))

        def run_now(done: Future[Any]) -> Future[Any]:
            if (served := last_served_call()) is not None:
                served.check()  # it may have waited until its caller gave up
            return agent.serving.runner.run_to_future(user_call(result(done)))

        return UserCall(run_later, mode=CallMode.FUTURE, name=f"RRef.{name}")

    def _prepare_fetch(self, caller: WorkerInfo, payload: object) -> UserCall:
        return self.on_value(caller, payload, "to_here", _fetched)

    def _admit_call(self, call: ServedCall, document: bytes) -> Prepare:
        return self.admit(call, read_head(document, ARGUMENTS))

    def _admit_read(self, call: ServedCall, document: bytes) -> Prepare:
        return self.admit(call, read_head(document, ARGUMENTS), reads=True)

    def _admit_creation(self, call: ServedCall, document: bytes) -> Prepare:
        head = read_head(document, ARGUMENTS)
        if "method" in head:
            return partial(self._prepare_creation, self.admit(call, head))
        name, func = admit_function(self._agent.permissions.resolve, call, head)

        def prepare_function(_: WorkerInfo, payload: object) -> UserCall:
            return UserCall(func, *read_arguments(payload, name), mode_of(func), name)

        return partial(self._prepare_creation, prepare_function)

    def _prepare_creation(self, prepare: Prepare, caller: WorkerInfo, payload: object) -> UserCall:
        registry, agent = self._registry, self._agent
        making = _Creation(registry, lambda: user_call())
        rref = making.begin()
        try:
            user_call = prepare(caller, payload)
        except BaseException as error:  # in a remote handler: other requests wait for the value
            registry.settle(rref, None, fresh_copy(error))
            raise

        if user_call.mode is CallMode.PLAIN:
            return UserCall(making.make, name=user_call.name)
        return UserCall(
            lambda: agent.serving.runner.run_to_future(user_call).then(making.keep),
            mode=CallMode.FUTURE,
            name=user_call.name,
        )

    def _named(self, rref: RRefId) -> tuple[Future[Any], list[Reference]]:
        """Returns a value that a request names; the request may arrive before the creation.

        Returns:
            The value, and a list with the reference that holds it until it is there; the list is
            empty if it is there and is no error. Nothing else holds the reference, as a call that
            was given up empties the list.
        """
        registry = self._registry
        value = registry.value(rref)
        if value is not None and value.done() and not value._failed:
            return value, []
        reference = registry.borrow(rref)
        # Asked again: `borrow` enters a value that is only expected, and holds it from now on.
        if (value := registry.value(rref)) is None:
            raise registry.gone(rref)
        return value, [reference]
